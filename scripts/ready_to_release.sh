#!/bin/sh
# Refuses a release that is not ready: its tag, the version and the changelog agree, and the project's address is set.
# Usage: scripts/ready_to_release.sh TAG
set -eu
cd "$(dirname "$0")/.."

die() { printf 'release: %s\n' "$*" >&2; exit 1; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' spark_mq/__init__.py)
[ "$1" = "v$version" ] || die "the tag is $1, and spark_mq/__init__.py says $version"
grep -q "^## $version, [0-9-]*$" CHANGELOG.md || die "CHANGELOG.md needs a heading '## $version, YEAR-MONTH-DAY'"
if grep -q '//github.com/OWNER/' pyproject.toml; then die "pyproject.toml: [tool.spark_mq] still names OWNER"; fi
printf 'release: %s is ready\n' "$version"
