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
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/spark_mq/wheels

# Prints where the wheel of this release is. PySpark is published as source alone, so building it costs a minute and 450 MB each time:
# one wheel serves all clones of this user.
spark_wheel() {
    set -- "$wheels/pyspark-$release"-*.whl
    if ! [ -f "$1" ]; then
        printf 'setup: building the wheel of PySpark %s in %s, once\n' "$release" "$wheels" >&2
        mkdir -p "$wheels"
        making=$(mktemp -d "$wheels/making-XXXXXX")
        .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps \
            --wheel-dir "$making" "pyspark==$release" </dev/null >&2 || { rm -rf "$making"; return 1; }
        mv "$making"/*.whl "$wheels"
        rmdir "$making"
        set -- "$wheels/pyspark-$release"-*.whl
    fi
    printf '%s\n' "$1"
}

if ! [ -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    wheel=$(spark_wheel)
    printf 'setup: PySpark %s in %s (450 MB)\n' "$release" "$venv" >&2
    "$uv" venv --quiet --no-config --clear --python .venv/bin/python "$venv"
    # Spark and what is chosen for it may differ from the lock. Delta's Python part says pyspark<=4.2.0 of releases that it works with.
    locked=$venv/locked.txt
    sed -n 's/^\([A-Za-z].*==.*[^ \\]\) *\\$/\1/p' requirements.lock \
        | grep -vE '^(pyspark|delta-spark|py4j|grpcio|grpcio-status|googleapis-common-protos|protobuf)==' >"$locked"
    install() { "$uv" pip install --quiet --no-config --python "$venv/bin/python" --constraint "$locked" "$@"; }
    install --group pyproject.toml:dev "pyspark[sql,connect] @ file://$wheel" importlib-metadata \
        --editable '.[spark,fast,s3,rocksdb,archive,acl,metrics]'
    install --no-deps "$(sed -n 's/^\(delta-spark==[^ ;\\]*\).*/\1/p' requirements.lock)"
    printf '%s\n' "$wanted" >"$stamp"
fi
printf '%s/bin/python\n' "$venv"
