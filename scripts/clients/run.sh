#!/usr/bin/env bash
# Real clients against this server: the demo model, and a script that thinks, talks and calls a tool.
# usage: scripts/clients/run.sh [SCRATCH]; needs node 20 and Python 3.11, installs into SCRATCH
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
scratch=${1:-/tmp/dgpp-clients}; port=18476
python=$root/.venv/bin/python
mkdir -p "$scratch"; cd "$scratch"

venv() { [ -d "$1" ] || python3 -m venv "$1"; shift; "$venv_bin/pip" install -q --disable-pip-version-check "$@"; }
for pair in "langchain:langchain-openai==1.7.4" "lm_eval:lm_eval[api]==0.4.13 transformers" \
  "benchy:llama-benchy==0.4.0" "aiperf:aiperf==0.13.0"; do
  venv_bin=$scratch/${pair%%:*}/bin
  # shellcheck disable=SC2086
  venv "${pair%%:*}" ${pair#*:}
done
cp "$here"/*.mjs "$here/package.json" .
npm install --silent --no-fund --no-audit

export PYTHONPATH=$root
started=()
trap 'for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done' EXIT
"$python" -P -m dgpp run "$root/deploy/demo.json" --port $port --set paths.log_dir="$scratch/logs" \
  > demo.log 2>&1 &
started+=($!)
rm -f calling.txt pipe; mkfifo pipe
"$python" "$here/serve_calling.py" < pipe > calling.txt 2> calling.log &
exec 9> pipe
until [ -s calling.txt ] && curl -sf "http://127.0.0.1:$port/health" > /dev/null; do sleep 1; done
read -r calling_base calling_model < calling.txt
base=http://127.0.0.1:$port model=dgpp/demo
where=("$base" "$model" "$calling_base" "$calling_model")
tokenizer=$("$python" -c 'from dgpp.checkpoint.demo import ensure_demo; print(ensure_demo())')

failed=0
for client in openai_node anthropic_node vercel_ai; do
  node "$client.mjs" "${where[@]}" || failed=1
done
langchain/bin/python "$here/langchain_client.py" "${where[@]}" || failed=1
"$here/lm_eval.sh" lm_eval/bin/lm_eval "$base" "$model" "$tokenizer" || failed=1
printf 'It was a bright cold day, and the keeper wrote of ships. %.0s' {1..3000} > book.txt
python3 -m http.server 18477 --bind 127.0.0.1 > /dev/null 2>&1 &
started+=($!)
HF_HUB_OFFLINE=1 benchy/bin/llama-benchy --base-url "$base/v1" --model "$model" \
  --tokenizer "$tokenizer" --book-url http://127.0.0.1:18477/book.txt --pp 128 --tg 16 --depth 0 256 \
  --runs 1 --exact-tg --enable-prefix-caching --no-warmup 2>&1 | grep -E '^\||PASSED' |
  sed 's/^/llama-benchy: /' || failed=1
aiperf/bin/aiperf profile --model "$model" --url "$base" --endpoint-type chat --streaming \
  --tokenizer "$tokenizer" --concurrency 2 --request-count 6 --synthetic-input-tokens-mean 64 \
  --output-tokens-mean 16 --extra-inputs ignore_eos:true --ui-type none \
  --use-server-token-count --output-artifact-dir aiperf-out > aiperf.log 2>&1 || failed=1
"$python" - <<'PYTHON' || failed=1
import json
found = json.load(open("aiperf-out/profile_export_aiperf.json"))
for name in ("request_count", "error_request_count", "output_sequence_length", "inter_token_latency"):
    print("aiperf:", name, (found.get(name) or {}).get("avg"))
metrics = json.load(open("aiperf-out/server_metrics_export.json"))
print("aiperf:", len(metrics["metrics"]), "of the server's own metrics scraped")
PYTHON
exec 9>&-
exit $failed
