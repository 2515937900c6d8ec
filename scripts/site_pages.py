"""Hooks of mkdocs.yml: the repository's Markdown becomes pages of a site, unchanged but for its links.

README.md and CHANGELOG.md stand beside docs/ and become pages too. A link of a page may lead to a page, to a heading, or to any other
file of the repository; on the site the last kind leads to the repository's address, which pyproject.toml names.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["spark_mq"]
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Files at the repository's top that are pages, and the pages' names."""

_CODE = re.compile(r"^(```.*?^```|~~~.*?^~~~)$|(`+[^`\n]+`+)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<text>\[[^][]*)?\]\((?P<target>[^)\s]+)\)")
_FILE_NAME = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md")
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.site_url = PROJECT["documentation"].rstrip("/") + "/"
    config.extra["social"] = [
        {"icon": "fontawesome/brands/git-alt", "link": PROJECT["repository"], "name": "The repository"}
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File  # this module is also read where there is no mkdocs

    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    at = page.file.src_uri
    place = next((name for name, other in BESIDE.items() if other == at), f"docs/{at}")
    return site_text(markdown, place)


def site_text(markdown: str, place: str) -> str:
    """A page's text for the site; `place` is its path in the repository. What is code stays as it is."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = _COMMENT.sub("", _CODE.sub(keep, markdown))
    text = _LINK.sub(lambda found: _site_link(found, place), text)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)


def _site_link(found: re.Match[str], place: str) -> str:
    """A whole link. Where its text is the page's file name, the site shows the page's title."""
    text = found["text"] or ""
    if _FILE_NAME.fullmatch(text):
        page = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(place), found["target"].partition("#")[0]))
        title = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE) if page.is_file() else None
        text = f"[{title[1]}" if title else text
    return f"{text}]({site_link(found['target'], place)})"


def site_link(target: str, place: str) -> str:
    """Where a link of the file `place` leads on the site."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path, mark, heading = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
    page = _page(path)
    if page is None:
        return f"{PROJECT['repository']}/blob/main/{path}{mark}{heading}"
    return posixpath.relpath(page, posixpath.dirname(_page(place) or "") or ".") + mark + heading


def _page(path: str) -> str | None:
    """The page, below docs/, that a file of the repository becomes; None if it becomes none."""
    if path in BESIDE:
        return BESIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith(".md") else None
