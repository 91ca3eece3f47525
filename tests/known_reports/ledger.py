"""Faults that others reported of their servers, and what keeps each of them out of this one.

A number is a line of our own list of such reports, `threads` are where they were told. `@report(n)`
marks a test of this folder as one of number n. `covered` names tests elsewhere that would fail if
the fault were here; `elsewhere` says what no test here could see, and why. `test_ledger.py` checks
all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Report(NamedTuple):
    threads: str
    covered: tuple[str, ...] = ()
    elsewhere: str = ""


def report(*numbers: int) -> pytest.MarkDecorator:
    """Tests with this mark have number and threads in their ids."""
    ids = [f"{number}: {REPORTS[number].threads}" for number in numbers]
    return pytest.mark.parametrize("thread", ids, ids=ids)


_CALLS = "unit/text/test_calls.py::"
_OUTPUT = "unit/text/test_output.py::"
_CACHED = "parity/test_cached_exactly.py::"
_SAMPLER = "unit/sample/test_sampler.py::"
_JOURNAL = "unit/net/test_journal_world.py::"
_DISK = "e2e/test_disk_tier.py::"
_ADMISSION = "e2e/test_cache_and_admission.py::"
_DRAFTS = "the half of it that wants drafts in service: speculation is not served yet"
_FABRIC = "RoCE: the RDMA transport is not served yet"

REPORTS: dict[int, Report] = {
    # Streams: characters, stop strings, usage, choices.
    1: Report("mlc-ai/mlc-llm#1142", (_OUTPUT + "test_split_characters_wait_mlc_llm_1142",)),
    2: Report("ggml-org/llama.cpp#28926"),
    3: Report("Luce-Org/lucebox#641", (_OUTPUT + "test_split_characters_wait_mlc_llm_1142",)),
    5: Report(
        "vllm-project/vllm#3574, #2577", (_OUTPUT + "test_partial_stop_is_never_shown_vllm_3574",)
    ),
    6: Report("SwiftLM#132", (_OUTPUT + "test_any_split_gives_the_same_answer",)),
    7: Report(
        "huggingface/text-generation-inference#1254",
        (_OUTPUT + "test_stop_cuts_text_logprobs_and_usage",),
    ),
    9: Report("mlx-knife#68", (_OUTPUT + "test_any_split_gives_the_same_answer",)),
    10: Report("vllm#45636", (_CALLS + "test_stop_strings_count_in_the_text_alone",)),
    11: Report("vllm#38864, #38789"),
    13: Report(
        "vllm#7262",
        ("unit/serve/test_responses.py::test_usage_is_one_last_event_and_null_before_vllm_7262",),
    ),
    14: Report("vllm#36379"),
    16: Report(
        "BerriAI/litellm#30870",
        ("e2e/test_openai_client.py::test_chat_one_shot_and_streamed_say_the_same",),
    ),
    17: Report("vllm#19662, #19650"),
    18: Report("ollama/ollama#4357"),
    19: Report("sglang#8417"),
    20: Report("llama.cpp#20226"),
    21: Report(
        "BerriAI/litellm#3276, TGI#1648, ModelTC/LightLLM#130",
        ("e2e/test_openai_client.py::test_two_choices_have_their_own_indices_and_ends",),
    ),
    # Tool calls.
    22: Report("vllm#44326", (_CALLS + "test_calls_without_arguments_and_several_of_them",)),
    23: Report("vllm#32436"),
    24: Report("vllm#39253, #34449", (_CALLS + "test_a_call_is_told_with_its_values_as_declared",)),
    25: Report("vllm#47190"),
    26: Report("vllm#39757"),
    27: Report(
        "vllm#42400, #46040, XiaomiMiMo/MiMo-V2-Flash#23",
        (
            _CALLS + "test_a_call_inside_the_reasoning_is_a_call",
            _CALLS + "test_elsewhere_it_is_part_of_the_reasoning",
        ),
    ),
    28: Report(
        "vllm#20678, #30439, sglang#27632, #34685",
        (_CALLS + "test_a_long_string_streams_as_it_comes",),
    ),
    29: Report("vllm#47137", (_CALLS + "test_a_call_cut_off_anywhere_is_no_error",)),
    30: Report(
        "club-3090#1191, #72, vllm#22975",
        (
            _CALLS + "test_markers_in_prose_are_text",
            _CALLS + "test_without_tools_a_call_is_text",
        ),
    ),
    32: Report("InternLM/lmdeploy#3412"),
    33: Report("vllm#37937", (_CALLS + "test_a_call_cut_off_anywhere_is_no_error",)),
    35: Report("vllm#53227, #40801, #40800, #54686, #45877, cline/cline#13348"),
    36: Report("vllm#44060", (_CALLS + "test_string_values_are_byte_exact",)),
    37: Report("vllm#58019", (_CALLS + "test_string_values_are_byte_exact",)),
    38: Report("sglang#27632", (_CALLS + "test_string_values_are_byte_exact",)),
    40: Report("vllm#35895, #45915", (_CALLS + "test_any_cutting_gives_the_same_answer",)),
    41: Report(
        "vllm#53269, #58228, #47903, #25054",
        ("e2e/test_constrained.py::test_forced_calls", _CALLS + "test_a_named_tool_ends_with_stop"),
    ),
    43: Report(
        "vllm#39574",
        ("e2e/test_responses_client.py::test_streamed_and_whole_responses_say_the_same",),
    ),
    # Reasoning.
    45: Report("1CatAI#41"),
    46: Report(
        "vllm#39885, #46042, #50512, sglang#32677, Rapid-MLX#208, vllm-ascend#8935",
        (_CALLS + "test_reasoning_is_split_from_the_answer",),
    ),
    47: Report(
        "QwenLM/qwen-code#3658, openclaw#71050, cline#10712, LibreChat#12836",
    ),
    48: Report(
        "sglang#26795, #24293, #24294, #25876, llama.cpp#18551, intel/llm-scaler#341",
        (
            "e2e/test_anthropic_client.py::test_streamed_and_whole_messages_say_the_same",
            "e2e/test_anthropic_client.py::test_the_answer_goes_back_as_history",
        ),
    ),
    # Structured answers.
    49: Report("guidance-ai/llguidance#265"),
    51: Report("mlc-ai/xgrammar#774"),
    52: Report("llama.cpp#8073"),
    53: Report("llama-cpp-python#1048"),
    55: Report("llama.cpp#25746, #26596"),
    56: Report(
        "llama.cpp#27434, #25283, #25308, #19008, #26600",
        ("unit/serve/test_jsonsafe.py::test_depth_is_64_llama_cpp_27434",),
    ),
    57: Report("vllm#17313, #19270, CVE-2025-48944"),
    58: Report("sglang#39125"),
    59: Report("vllm#44006, #53777, #53181, #46118, #46272, #52620, #18783, #11484"),
    60: Report("TGI#1601, #1643, #1661, sglang#3108"),
    61: Report("vllm#11484, end tokens"),
    # Log probabilities and sampling.
    63: Report(
        "llama.cpp#27972", ("unit/sample/test_sampler.py::test_drafts_never_change_the_answer",)
    ),
    64: Report("vllm#17876, sglang#17349"),
    65: Report(
        "vllm#6521, #5890",
        (
            "e2e/test_openai_client.py::test_a_completion_begins_with_its_prompt_where_asked",
            "parity/test_scored_prompts.py::test_beside_others_and_past_the_cache",
        ),
    ),
    67: Report("sglang#5525"),
    68: Report("vllm#21519"),
    69: Report("vllm#16529"),
    71: Report(
        "vllm#51226, #21310, llama.cpp#19981",
        (_SAMPLER + "test_the_same_seed_gives_the_same_text_in_any_slot_and_company",),
    ),
    72: Report(
        "CVE-2026-34756", ("e2e/test_openai_client.py::test_errors_are_the_clients_own_kinds",)
    ),
    # Prefix cache, clients that leave.
    73: Report(
        "vllm#53912, #43559", (_CACHED + "test_any_conversation_is_what_it_would_be_cold",), _DRAFTS
    ),
    74: Report(
        "a snapshot after a step of several tokens",
        ("unit/sched/test_scheduler_cache.py::test_any_load_reads_its_own_tokens_and_ends_clean",),
        _DRAFTS,
    ),
    75: Report(
        "vllm#39273",
        ("unit/sched/test_scheduler_cache.py::test_any_load_reads_its_own_tokens_and_ends_clean",),
        _DRAFTS,
    ),
    76: Report(
        "vllm#54360, #53505, LMCache#4247, tonyd2wild/GLM-5.3",
        (
            "unit/sched/test_scheduler_cache.py::test_fixed_state_is_shared_through_snapshots",
            "e2e/test_cache_and_admission.py::test_a_prompt_seen_before_is_counted_as_cached_once",
        ),
    ),
    77: Report(
        "SGLang's documentation of Claude Code's header",
        ("unit/cache/test_prefix_cache.py::test_misses_are_explained",),
    ),
    78: Report(
        "sglang#37833", ("e2e/test_abuse.py::test_requests_with_random_disconnects_leave_nothing",)
    ),
    79: Report(
        "sglang#36475, #36552, llama.cpp#24496, Rapid-MLX#1759, vllm#54947, MiaAI-Lab qwen dual#24",
        (
            "unit/sched/test_scheduler.py::test_end_from_outside_in_each_phase",
            "e2e/test_abuse.py::test_a_client_that_vanishes_frees_all_it_held",
        ),
    ),
    80: Report(
        "vllm#53505, aborted halfway",
        (_CACHED + "test_a_prompt_given_up_halfway_is_read_on_from_there",),
    ),
    # Templates, tokens, limits.
    81: Report("QwenLM/Qwen3#1894"),
    83: Report("zai-org/GLM-4.5#36"),
    84: Report(
        "transformers#29279, llama.cpp#24382, #26273, vllm#31735, sglang#30962, CVE-2026-44222",
        (
            "unit/text/test_tokenizer.py::test_chat_keeps_client_text_out_of_the_controls",
            "unit/text/test_tokenizer.py::test_raw_prompt_never_holds_a_control",
        ),
    ),
    85: Report("JustVugg/colibri#1589, Router-Maestro#37"),
    86: Report(
        "vllm#4667", ("unit/serve/test_chat.py::test_budget_names_prompt_and_limit_vllm_4667",)
    ),
    88: Report(
        "mlx-vlm#2112, TRT-LLM#10389",
        ("unit/text/test_tokenizer.py::test_stop_ids_are_the_union_transformers_29279",),
    ),
    89: Report("CVE-2026-22773, CVE-2026-5497"),
    90: Report(
        "CVE-2026-5760, GHSA-46cm-pfwv-cgf8, guidance#1475",
        ("unit/text/test_template.py::test_faults_and_bombs_are_named",),
    ),
    # Weights, kernels, ranks.
    91: Report(
        "vllm#54150",
        ("unit/kernels/test_linear.py::test_parts_of_one_matrix_keep_their_own_scales",),
    ),
    92: Report(
        "vllm#45212",
        (
            "unit/models/test_binding.py::test_a_missing_factor",
            "unit/models/test_binding.py::test_ignored_scales_may_be_absent",
        ),
    ),
    94: Report(
        "vllm#42354",
        ("unit/actors/test_actors_facts.py::test_another_version_is_seen",),
        "NCCL itself wants GPUs: ranks compare their own versions before anything is loaded",
    ),
    95: Report(
        "vllm#41530",
        (
            "e2e/test_world_model.py::test_an_engine_that_dies_or_stops_amid_a_sum_is_named",
            "e2e/test_ranks.py::test_the_end_of_any_process_of_any_rank_ends_the_world",
        ),
    ),
    96: Report(
        "MiaAI-Lab DSV4#87, qwen dual#3, GLM#163, #193",
        ("unit/engine/test_room.py::test_a_plan_that_does_not_fit_says_where",),
        "NCCL's start and the latency of a fabric want GPUs; the memory plan does not",
    ),
    97: Report(
        "model-serving-minefield#89",
        (
            _JOURNAL + "test_a_rank_that_disagrees_names_the_tick_and_what_differs",
            "sim/test_sim_world.py::test_random_worlds_keep_their_promises",
        ),
    ),
    98: Report(
        "GeeeekExplorer/nano-vllm#246",
        (
            "unit/actors/test_actors_ring.py::test_full_ring_waits_and_wakes_once_there_is_room",
            "unit/actors/test_actors_ring.py::test_two_processes_under_stress",
        ),
    ),
    99: Report(
        "completion before payload",
        (
            "unit/actors/test_actors_ring.py::test_fences_exist",
            "unit/net/test_host_collectives.py::test_many_of_all_kinds_one_behind_the_other",
        ),
        _FABRIC,
    ),
    100: Report(
        "logits by the number of rows",
        ("parity/test_exactness.py::test_rows_alone_batched_and_permuted",),
    ),
    101: Report(
        "an entry of the disk restored wrongly",
        (
            _DISK + "test_what_memory_gave_up_comes_back_from_disk_and_outlives_the_server",
            "unit/sched/test_scheduler_tier.py::test_any_load_over_any_disk_ends_clean",
        ),
    ),
    102: Report("addresses of a fabric that drop one way", (), _FABRIC),
}
