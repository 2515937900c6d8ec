#!/bin/sh
# Everything a fresh machine needs: Python's virtual environment, the locked packages, this project, Java.
# Run by `make`. Costs a moment when nothing has changed since the last run.
#   PYTHON=...  the interpreter to use, instead of the first of python3.11 ... python3.14, python3 that serves
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/setup.stamp  # line 1: where it was installed, line 2: from what

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }

# A user who may install packages without being asked: root, or one with sudo and no password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}
can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1
}
install_package() {
    say "setup: installing $1 with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1" </dev/null >&2
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}
has_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

# Sets python; a version manager's shim that names no installed version is passed over, as it does not run.
find_python() {
    python=
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        is_new_enough "$candidate" || continue
        python=$(command -v "$candidate")
        has_venv "$candidate" && return
    done
    [ -n "$python" ] || die "no Python 3.11 or newer found${PYTHON:+ behind PYTHON=$PYTHON}. Install one" \
        "(Debian 12, Ubuntu 24.04 or newer: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3"
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if can_install; then
        as_root apt-get update -q </dev/null >&2 || say "setup: apt-get update failed, trying without"
        install_package "$package" || true
    fi
    has_venv "$python" || die "$python has no venv module. Install it: sudo apt-get install $package"
}

# A moved environment does not work: its scripts name the interpreter by its full path.
has_working_environment() {
    [ -f "$STAMP" ] && [ "$(head -n 1 "$STAMP")" = "$(pwd)" ] && "$VENV/bin/python" -c '' 2>/dev/null
}
wanted_state() {
    pwd
    cat requirements.lock pyproject.toml | cksum
}

install_packages() {
    say "setup: installing packages, some minutes on the first run (Spark alone is 450 MB)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --use-pep517 \
        --require-hashes --requirement requirements.lock </dev/null
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --no-deps --no-build-isolation --editable . </dev/null
    wanted_state >"$STAMP"
}

find_java() {
    "$VENV/bin/python" -c 'import sys; from spark_mq.java import main; sys.exit(main())' 2>/dev/null
}

ensure_java() {
    find_java >/dev/null && return
    if can_install; then
        say "setup: no Java 17 or newer found"
        as_root apt-get update -q </dev/null >&2 || say "setup: apt-get update failed, trying without"
        for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
            install_package "$package" && find_java >/dev/null && return
        done
    fi
    die "Spark needs Java 17 or newer, and there is none. Install it:" \
        "sudo apt-get install openjdk-17-jre-headless (macOS: brew install openjdk@17), or set JAVA_HOME"
}

if ! has_working_environment; then
    find_python
    say "setup: $("$python" --version) in $VENV"
    "$python" -m venv --clear "$VENV"
fi
if ! [ -f "$STAMP" ] || [ "$(cat "$STAMP")" != "$(wanted_state)" ]; then
    install_packages
fi
ensure_java
