# Shared by the scripts beside it; sourced, never run. Sets ROOT and PY (once make_venv has run).
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
PY="$VENV/bin/python"
UNFINISHED="$VENV/.dgpp-unfinished"  # there while something is made of it
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

# End where pip's programs, whose first lines a shell reads, would not mean the folder $ROOT.
refuse_place() {
    local LC_ALL=C shown found='["$`\:[:cntrl:]]' bare='[]['"'"'#&()*;<>?{|}~!]'
    # Up to that length, and without a space, the kernel reads that line itself.
    if [[ $ROOT =~ $found ]] || { [[ $ROOT != *' '* && ${#ROOT} -gt 100 ]] && [[ $ROOT =~ $bare ]]; }; then
        shown=${BASH_REMATCH[0]}
        [[ $shown != [[:cntrl:]] ]] || printf -v shown %q "$shown"
        die "a shell would not take the folder $(printf %q "$ROOT") as it is, for its $shown;" \
            "nothing was made: move the checkout to another folder"
    fi
}

# Exit 0 when .venv is whole and its stamp, the file $1, says $2.
venv_is_made() {
    [ ! -e "$UNFINISHED" ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ] && python_fits "$PY"
}

# A fresh .venv, marked as unfinished.
begin_venv() {
    local python
    python=$(find_python) || exit 1
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
    note "making a virtual environment in $VENV with $("$python" --version)"
    # By one step, so that half of it is never taken for an environment.
    rm -rf "$VENV.removed"
    [ ! -e "$VENV" ] && [ ! -L "$VENV" ] || mv "$VENV" "$VENV.removed"
    rm -rf "$VENV.removed"
    mkdir "$VENV" && : >"$UNFINISHED" && "$python" -m venv "$VENV" ||
        die "no virtual environment in $VENV: the message stands above; the next call begins anew"
}

# What make_venv does while no other does: the stamp's file, what it is to say, the extra.
fill_venv() {
    local stamp=$1 wanted=$2 extra=$3 whole=
    ! venv_is_made "$stamp" "$wanted" || return 0
    if [ ! -e "$UNFINISHED" ] && python_fits "$PY" && "$PY" -P -m pip --version >/dev/null 2>&1; then
        whole=1
    else
        begin_venv
    fi
    note "installing dgpp${extra:+[$extra]} into $VENV (about a minute the first time)"
    : >"$UNFINISHED"
    if ! "$PY" -P -m pip install -qq --disable-pip-version-check --editable "$ROOT${extra:+[$extra]}"; then
        # What served before still does: pip puts back what it has replaced.
        [ -z "$whole" ] || rm -f "$UNFINISHED"
        die "pip could not install the project; its message stands above"
    fi
    { printf '%s\n' "$wanted" >"$stamp" && rm "$UNFINISHED"; } ||
        die "$stamp cannot be written; the next call begins anew"
}

# make_venv [EXTRA]: a virtual environment in .venv with the project, editable, and its extra.
# Does nothing when neither pyproject.toml nor the place of the checkout has changed since; one
# that was cut short is made anew.
make_venv() {
    local extra=${1:-} wanted stamp
    refuse_place
    stamp="$VENV/.dgpp-installed${extra:+-$extra}"
    wanted=$(printf '%s\n' "$ROOT" | cat - "$ROOT/pyproject.toml" | cksum)
    ! venv_is_made "$stamp" "$wanted" || return 0
    watched make_alone "$stamp" "$wanted" "$extra"
}

# fill_venv when no other does; what it runs holds the lock too, and outlives no next one so.
make_alone() {
    if ! flock -n 9; then
        note "another command makes $VENV; waiting for its end"
        flock 9
    fi
    fill_venv "$@"
} 9>"$VENV.lock"

# Run $1 with its arguments in a process group of its own, which a signal to this script ends.
watched() {
    local before status=0
    before=$(trap -p INT TERM HUP)
    set -m
    "$@" </dev/null &
    made=$!
    set +m
    trap 'end_made INT 130' INT
    trap 'end_made TERM 143' TERM
    trap 'end_made HUP 129' HUP
    wait "$made" || status=$?
    trap - INT TERM HUP
    eval "$before"
    [ "$status" -eq 0 ] || exit "$status"
}

# shellcheck disable=SC2329  # run by the traps
end_made() {
    trap '' INT TERM HUP
    kill -TERM -- "-$made" 2>/dev/null || true
    wait "$made" 2>/dev/null || true
    note "stopped by SIG$1; $VENV is made anew by the next call where it is not whole"
    exit "$2"
}
