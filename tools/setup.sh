#!/bin/sh
# Makes a virtual environment and installs the pinned packages into it. Called by the Makefile:
#
#     sh tools/setup.sh runtime [FOLDER]    what the services, the command and the demo need
#     sh tools/setup.sh test [FOLDER]       that, and what the tests need, without torch
#     sh tools/setup.sh dev [FOLDER]        that, and what all tests and checks need
#
# PYTHON names the interpreter to use; without it the first on PATH that is 3.11 or newer is taken.
# Writes FOLDER (.venv where none is named) and nothing else (and *.egg-info, which pip leaves).
set -eu

kind=${1:?runtime, test or dev}
venv=${2:-.venv}
cd "$(dirname "$0")/.."

case "$(uname -s)" in
    Linux | Darwin) ;;
    *) echo "ADLRO runs on Linux and macOS; on Windows use WSL." >&2; exit 1 ;;
esac

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" && { echo "$PYTHON"; return; }
        echo "PYTHON=$PYTHON does not run or is older than 3.11; ADLRO needs Python 3.11 or newer." >&2
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        new_enough "$candidate" && { echo "$candidate"; return; }
    done
    found=$(python3 --version 2>/dev/null || echo "no python3 at all")
    echo "ADLRO needs Python 3.11 or newer, and found $found." >&2
    echo "Install one, or name one that you have: make PYTHON=/path/to/python3.12 ..." >&2
    return 1
}

venv_is_good() {
    [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

if ! venv_is_good; then
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "$python has no working 'venv' module, which Linux distributions package on its own." >&2
        echo "On Debian and Ubuntu: sudo apt-get install python$version-venv" >&2
        exit 1
    fi
    echo "Set-up: making $venv with $("$python" --version) ..."
    "$python" -m venv --clear "$venv"
fi

log=$venv/setup.log
case $kind in
    runtime) what=".[suite,web]" ;;
    test | dev) what=".[$kind]" ;;
    *) echo "runtime, test or dev, not '$kind'" >&2; exit 2 ;;
esac
echo "Set-up: installing the pinned packages ($kind) into $venv; under a minute on a good line ..."
# Packages are compiled when first imported, which is quicker than compiling all of them now.
if ! "$venv/bin/python" -m pip install --no-compile --disable-pip-version-check --no-input \
    -c constraints.txt -e "$what" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo >&2
    echo "Set-up failed: pip could not install the packages; its last lines stand above, all of them in $log." >&2
    echo "Without a line to a package index, set PIP_INDEX_URL or PIP_FIND_LINKS to what you have, and run again." >&2
    exit 1
fi
touch "$venv/.runtime-stamp" "$venv/.$kind-stamp"
echo "Set-up: done."
