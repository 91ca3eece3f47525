#!/usr/bin/env bash
# The whole thing on one machine: install, fetch the demo model, serve it, ask it one question.
# Leaves the server in the foreground; with --once it stops after the answer.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

QUESTION="Why is the sky blue?"
READY_DEADLINE_S=300   # the first start compiles the kernels
STOP_DEADLINE_S=65     # draining and the server's own watchdog come first

usage() {
    cat <<EOF
usage: scripts/demo.sh [--once]

  --once          stop the server after the answer; exit 0 if there was one and it stopped orderly
  DGPP_PORT=N     listen on N (default 18080, or a free port when that is taken)
  PYTHON=python   build the virtual environment with this interpreter ($SUPPORTED)
EOF
}

once=
case "${1:-}" in
    "") ;;
    --once) once=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
esac

server=  # process id, which is also its process group
helper=  # process id of what runs beside the server
log=

# Run a command and wait for it in a way that a signal to this script interrupts.
attend() {
    local result=0
    "$@" &
    helper=$!
    wait "$helper" || result=$?
    helper=
    return $result
}

# Ask the server to stop and collect its exit status into $status.
stop_server() {
    local waited=0
    kill -TERM "$server" 2>/dev/null || true
    while kill -0 "$server" 2>/dev/null && [ $((waited += 1)) -le $((STOP_DEADLINE_S * 10)) ]; do
        sleep 0.1
    done
    kill -KILL -- "-$server" 2>/dev/null || true
    status=0
    wait "$server" 2>/dev/null || status=$?
    server=
}

# shellcheck disable=SC2329  # run by the trap
clean_up() {
    trap - INT TERM
    [ -z "$helper" ] || kill "$helper" 2>/dev/null || true
    [ -z "$server" ] || stop_server
    [ -z "$log" ] || rm -f "$log"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

show_log_and_die() {
    tail -n 40 "$log" >&2
    die "$*; the end of its log stands above"
}

# Print $1 if it is free, with a second argument else any free port; fail when it is taken.
choose_port() {
    "$PY" - "$@" <<'EOF'
import socket, sys

def bind(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port))
        return s.getsockname()[1]

try:
    print(bind(int(sys.argv[1])))
except (OSError, OverflowError, ValueError):
    if len(sys.argv) == 2:
        sys.exit(1)
    print(bind(0))
EOF
}

# Wait until the server answers /health with 200. Exit 1 at the deadline, 2 when it has ended.
# shellcheck disable=SC2329  # run through attend
wait_until_ready() {
    exec "$PY" - "$url/health" "$server" "$READY_DEADLINE_S" <<'EOF'
import os, signal, sys, time, urllib.request

signal.signal(signal.SIGINT, signal.SIG_DFL)
url, pid, deadline = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
while time.monotonic() < deadline:
    try:
        with direct.open(url, timeout=2):
            sys.exit(0)
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        sys.exit(2)
    time.sleep(0.1)
sys.exit(1)
EOF
}

make_venv
if [ -n "${DGPP_PORT:-}" ]; then
    port=$(choose_port "$DGPP_PORT") || die "DGPP_PORT=$DGPP_PORT is taken or is no port"
else
    port=$(choose_port 18080 any)
    [ "$port" = 18080 ] || note "port 18080 is taken, using $port"
fi
url="http://127.0.0.1:$port"

note "fetching the demo model (nothing to do when it is there)"
attend "$PY" -P -m dgpp fetch demo >/dev/null

log=$(mktemp)
note "starting the server on $url (the first start compiles the kernels)"
started=$SECONDS
# A process group of its own: Ctrl-C reaches this script alone, which then stops the server once.
set -m
"$PY" -P -m dgpp run "$ROOT/deploy/demo.json" --set "http.port=$port" </dev/null >"$log" 2>&1 &
server=$!
set +m
ready=0
attend wait_until_ready || ready=$?
case $ready in
    0) note "READY after $((SECONDS - started)) s" ;;
    2) show_log_and_die "the server ended before it was ready" ;;
    *) show_log_and_die "the server was not ready after $READY_DEADLINE_S s" ;;
esac

printf '\n> %s\n' "$QUESTION"
attend "$PY" -P -m dgpp chat --url "$url" --once "$QUESTION" --temperature 0 --max-tokens 160 ||
    show_log_and_die "the server gave no answer"
printf '\n'

if [ -n "$once" ]; then
    stop_server
    [ "$status" -eq 0 ] || show_log_and_die "the server ended with exit status $status"
    note "answered, and the server stopped orderly"
    exit 0
fi

note "the server runs at $url; talk to it: $(printf %q "$PY") -P -m dgpp chat --url $url"
note "Ctrl-C stops it. Its log follows."
tail -n +1 -f "$log" &
helper=$!
trap 'stop_server; exit "$status"' INT TERM
status=0
wait "$server" || status=$?
server=
die "the server ended with exit status $status"
