# Shared by the scripts beside it; sourced, never run. Sets ROOT and PY (once make_venv has run).
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
PY="$VENV/bin/python"
SUPPORTED="3.11, 3.12 or 3.13"

note() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

die() {
    note "$*"
    exit 1
}

# Exit 0 when $1 runs and is a version that the project supports.
python_fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

# Print the interpreter to build the virtual environment with: $PYTHON, else the first that fits.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        python_fits "$PYTHON" || die "PYTHON=$PYTHON is not a Python $SUPPORTED"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.12 python3.13 python3.11; do
        if python_fits "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python $SUPPORTED found (looked for python3, python3.12, python3.13, python3.11);" \
        "install one, or name it: PYTHON=/path/to/python $0"
}

# make_venv [EXTRA]: a virtual environment in .venv with the project, editable, and its extra.
# Does nothing when neither pyproject.toml nor the place of the checkout has changed since.
make_venv() {
    local extra=${1:-} python wanted stamp
    if ! python_fits "$PY"; then
        python=$(find_python) || exit 1
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            die "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
        note "making a virtual environment in $VENV with $("$python" --version)"
        rm -rf "$VENV"
        "$python" -m venv "$VENV"
    fi
    stamp="$VENV/.dgpp-installed${extra:+-$extra}"
    wanted=$(printf '%s\n' "$ROOT" | cat - "$ROOT/pyproject.toml" | cksum)
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    note "installing dgpp${extra:+[$extra]} into $VENV (about a minute the first time)"
    "$PY" -m pip install -qq --disable-pip-version-check --editable "$ROOT${extra:+[$extra]}" ||
        die "pip could not install the project; its message stands above"
    printf '%s\n' "$wanted" >"$stamp"
}
