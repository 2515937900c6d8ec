#!/bin/sh
# dist/: sdist and wheel, built in an environment of their own. Needs uv (on the path, or this clone's), else Python 3.11 with venv.
set -eu
cd "$(dirname "$0")/.."
rm -rf dist
if uv=$(command -v uv || command -v .venv/bin/uv); then
    "$uv" build --quiet
else
    "${PYTHON:-python3}" -m venv --clear build/env
    build/env/bin/pip install --quiet --disable-pip-version-check build
    build/env/bin/python -m build --outdir dist >/dev/null
fi
rm -rf build/env build/lib build/bdist.* ./*.egg-info # build/site is the documentation
ls dist/*
