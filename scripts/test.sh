#!/usr/bin/env bash
# Everything that a change must pass: lint, types, import order, and the CPU tests by tier.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<EOF
usage: scripts/test.sh [--long] [--gpu] [--roce]

  --long          also run soaks and long loops (no time budget)
  --gpu           run what needs a CUDA device instead, with PYTHON or python3 as it is
  --roce          run tests/roce instead, in a machine of its own (scripts/roce-vm), or with the
                  devices of this one: DGPP_TEST_ROCE_DEVICES="A B", DGPP_TEST_ROCE_GID=1
  PYTHON=python   build the virtual environment with this interpreter ($SUPPORTED)

A tier over its time budget fails, unless others had the processor; see scripts/run_tiers.py.
EOF
}

tiers=()
gpu=0
roce=0
for option in "$@"; do
    case "$option" in
        --long) tiers+=(--long) ;;
        --gpu) gpu=1 ;;
        --roce) roce=1 ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 1 ;;
    esac
done

if [ "$gpu" = 1 ]; then
    # The machine's own packages: CUDA machines come with theirs, and offline ones get no others.
    cd "$ROOT"
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    for package in numba cupy msgspec pytest; do
        "${PYTHON:-python3}" -c "import $package" 2>/dev/null ||
            die "${PYTHON:-python3} has no $package: install 'dgpp[cuda,dev]' there, or name another, PYTHON=..."
    done
    # Without a device every test would skip, and nothing would have been shown.
    "${PYTHON:-python3}" -c 'from kernels_numba.gpu.device import open_device; print(open_device())' ||
        die "no GPU can be used"
    exec "${PYTHON:-python3}" -m pytest -q -W ignore -k "cuda or gpu" \
        tests/gpu tests/unit/kernels tests/parity/test_exactness.py
fi

make_venv dev
cd "$ROOT"

if [ "$roce" = 1 ]; then
    [ -n "${DGPP_TEST_ROCE_DEVICES:-}" ] || exec scripts/roce-vm test
    exec "$PY" -m pytest -q -m 'not long' tests/roce
fi

# One BLAS thread: two collapse when something else runs beside them. OPENBLAS_CORETYPE stays as
# it is: where a machine sets it, older BLAS builds need it.
export OPENBLAS_NUM_THREADS=1
export HF_HUB_OFFLINE=1

failed=()
check() {
    local name=$1
    shift
    note "$name"
    "$@" || failed+=("$name")
}

check "ruff check" "$PY" -m ruff check .
check "ruff format" "$PY" -m ruff format --check .
check "mypy" "$PY" -m mypy
check "import order" "$VENV/bin/lint-imports" --no-logo
check "tests" "$PY" scripts/run_tiers.py ${tiers[@]+"${tiers[@]}"}

[ ${#failed[@]} -eq 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
