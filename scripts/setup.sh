#!/usr/bin/env bash
# From a fresh checkout to a deployment that can be started: makes .venv, then `dgpp setup` leads on.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<EOF
usage: scripts/setup.sh [--prepare] [OPTION]...

  --prepare       make the virtual environment and end
  -y, --yes       ask nothing: what is known, else the defaults
  --start         start the deployment when all is ready
  --check         look at the nodes and end; write nothing
  --port N        serve on port N
  PYTHON=python   build the virtual environment with this interpreter ($SUPPORTED)

All options of \`dgpp setup\` are taken: .venv/bin/dgpp setup --help lists them. Answers are kept in
.env (or DGPP_ENV_FILE), and exported variables count as answers: DGPP_NODES, DGPP_SSH_USER,
DGPP_CLUSTER_CONFIG, HF_HUB_CACHE, DGPP_ROCE_DEVICES. A second run goes on where the first stopped.
EOF
}

prepare=
arguments=()
for option in "$@"; do
    case "$option" in
        -h | --help) usage; exit 0 ;;
        --prepare) prepare=1 ;;
        *) arguments+=("$option") ;;
    esac
done

# A machine with NVIDIA's driver gets what its GPU is used with.
extra=
[ ! -e /proc/driver/nvidia/version ] || extra=cuda
make_venv $extra
[ -z "$prepare" ] || exit 0
exec "$PY" -P -m dgpp setup ${arguments[@]+"${arguments[@]}"}
