"""What of the package's metadata follows from other files; everything else stands in pyproject.toml.

An index page shows README.md without the repository around it, so its relative links become addresses there, of this version.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["spark_mq"]
REPOSITORY, DOCUMENTATION = PROJECT["repository"], PROJECT["documentation"]


def version() -> str:
    (found,) = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "spark_mq" / "__init__.py").read_text("utf-8"), re.MULTILINE
    )
    return str(found)


def with_whole_links(text: str, base: str) -> str:
    """Markdown whose links to files of the repository begin with `base`; those to headings of the text itself stay."""
    return re.sub(r"(\]\()(?![a-z]+:|#)", rf"\g<1>{base}/", text)


if __name__ == "__main__":
    setup(
        version=version(),
        long_description=with_whole_links(
            (ROOT / "README.md").read_text(encoding="utf-8"), f"{REPOSITORY}/blob/v{version()}"
        ),
        long_description_content_type="text/markdown",
        project_urls={
            "Documentation": DOCUMENTATION,
            "Source": REPOSITORY,
            "Issues": f"{REPOSITORY}/issues",
            "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        },
    )
