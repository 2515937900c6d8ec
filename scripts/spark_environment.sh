#!/bin/sh
# An environment with another release of Spark beside .venv: SPARK=4.1.4, and all else as locked. Prints where its Python is.
# Usage: scripts/spark_environment.sh RELEASE. Costs a moment when it is there already.
set -eu
cd "$(dirname "$0")/.."

release=$1
venv=.venv-spark-$release
uv=.venv/bin/uv
stamp=$venv/setup.stamp
wanted=$(cat requirements.lock pyproject.toml | cksum)

if ! [ -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    printf 'setup: PySpark %s in %s (450 MB)\n' "$release" "$venv" >&2
    "$uv" venv --quiet --no-config --clear --python .venv/bin/python "$venv"
    # Spark and what is chosen for it may differ from the lock. Delta's Python part says pyspark<=4.2.0 of releases that it works with.
    locked=$venv/locked.txt
    sed -n 's/^\([A-Za-z].*==.*[^ \\]\) *\\$/\1/p' requirements.lock \
        | grep -vE '^(pyspark|delta-spark|py4j|grpcio|grpcio-status|googleapis-common-protos|protobuf)==' >"$locked"
    install() { "$uv" pip install --quiet --no-config --python "$venv/bin/python" --constraint "$locked" "$@"; }
    install --group pyproject.toml:dev "pyspark[sql,connect]==$release" importlib-metadata \
        --editable '.[spark,fast,s3,rocksdb,archive,acl,metrics]'
    install --no-deps "$(sed -n 's/^\(delta-spark==[^ ;\\]*\).*/\1/p' requirements.lock)"
    printf '%s\n' "$wanted" >"$stamp"
fi
printf '%s/bin/python\n' "$venv"
