#!/bin/sh
# build/site, the documentation, from docs/, README.md and CHANGELOG.md. mkdocs and what it needs lie in an environment of their own,
# which is made once; after that nothing is fetched. The package is read, not imported.
set -eu
cd "$(dirname "$0")/.."

venv=.venv-docs
stamp=$venv/setup.stamp
wanted=$(cksum <pyproject.toml)
if ! [ -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    printf 'docs: installing mkdocs into %s\n' "$venv" >&2
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'pip>=25.1' # the first that knows groups
    "$venv/bin/pip" install --quiet --disable-pip-version-check --group docs
    printf '%s\n' "$wanted" >"$stamp"
fi
# Not --quiet: it hides warnings from --strict, too.
NO_MKDOCS_2_WARNING=1 exec "$venv/bin/mkdocs" build --strict "$@"
