#!/usr/bin/env bash
# Evaluation harness: loglikelihood and generation through local-completions, eight questions.
# usage: lm_eval.sh LM_EVAL BASE MODEL TOKENIZER_DIRECTORY
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
cat > "$folder/capitals.jsonl" <<'LINES'
{"question": "The capital of France is", "choices": ["London", "Paris", "Madrid", "Rome"], "answer": 1}
{"question": "The opposite of hot is", "choices": ["cold", "green", "tall", "loud"], "answer": 0}
{"question": "Two plus two equals", "choices": ["seven", "nine", "four", "one"], "answer": 2}
{"question": "A baby cat is called a", "choices": ["puppy", "calf", "foal", "kitten"], "answer": 3}
{"question": "The sun rises in the", "choices": ["east", "bank", "night", "sea"], "answer": 0}
{"question": "Water freezes into", "choices": ["steam", "ice", "sand", "wood"], "answer": 1}
{"question": "Bees make", "choices": ["milk", "silk", "honey", "bread"], "answer": 2}
{"question": "The first month of the year is", "choices": ["May", "July", "June", "January"], "answer": 3}
LINES
shared="dataset_path: json
dataset_kwargs: {data_files: {test: $folder/capitals.jsonl}}
test_split: test
doc_to_text: '{{question}}'
target_delimiter: ' '"
printf '%s\n' "task: capitals" "$shared" "output_type: multiple_choice" "doc_to_target: answer" \
  "doc_to_choice: choices" \
  "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]" > "$folder/choice.yaml"
printf '%s\n' "task: capitals_perplexity" "$shared" "output_type: loglikelihood_rolling" \
  "doc_to_target: '{{question}} {{choices[answer]}}'" \
  "metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]" \
  > "$folder/rolling.yaml"
printf '%s\n' "task: capitals_said" "$shared" "output_type: generate_until" \
  "doc_to_target: '{{choices[answer]}}'" "generation_kwargs: {until: ['.', ','], max_gen_toks: 8}" \
  "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ['^ ']}]" \
  > "$folder/said.yaml"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
"$1" run --model local-completions --tasks capitals,capitals_perplexity,capitals_said \
  --include_path "$folder" --batch_size 4 --model_args \
  "model=$3,base_url=$2/v1/completions,tokenizer_backend=huggingface,tokenizer=$4" 2>&1 |
  grep -E '^\|' | sed 's/^/lm-eval: /'
