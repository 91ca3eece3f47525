"""The `engine` section: how the model runs. Attribute names are the key names."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from dgpp.config.key import LATER, Key

_Backend = partial(Key, group="backend")
_Capacity = partial(Key, group="capacity")
_Prefill = partial(Key, group="prefill")
_Cache = partial(Key, group="prefix cache")
_Text = partial(Key, group="text")
_Drafts = partial(Key, group="speculation")
_DFlash = partial(Key, group="block drafter")
_Forms = partial(Key, group="weight forms")
_Kernels = partial(Key, group="kernels")
_World = partial(Key, group="world")

_MANY = 2**30

_SWITCH = (True, False)
TEMPLATE_SWITCHES: dict[str, tuple[bool | str, ...]] = {
    "enable_thinking": _SWITCH,
    "thinking": _SWITCH,
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "preserve_thinking": _SWITCH,
    "clear_thinking": _SWITCH,
    "drop_thinking": _SWITCH,
    "truncate_history_thinking": _SWITCH,
    "preserve_reasoning": _SWITCH,
}
"""The template variables that a request, and so a deployment, may set, with their values."""


def _is_repository(name: str) -> bool:
    owner, slash, repository = name.partition("/")
    return bool(owner and slash and repository) and "/" not in repository


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """YaRN over the trained context; every field as the checkpoint's own config.json names it."""

    rope_type: Annotated[Literal["yarn"], Key("scaling rule", flag="")] = "yarn"
    factor: Annotated[
        float, Key("context is the original one times this", above=0, high=1024, flag="")
    ]
    original_max_position_embeddings: Annotated[
        int, Key("context the checkpoint was trained for", 1, 2**40, unit="tokens", flag="")
    ]
    beta_fast: Annotated[float, Key("rotations above which a pair is kept", above=0, flag="")] = (
        32.0
    )
    beta_slow: Annotated[
        float, Key("rotations below which a pair is interpolated", above=0, flag="")
    ] = 1.0
    attn_factor: Annotated[float, Key("factor on the attention scale", above=0, flag="")] = 1.0
    mrope_cache_factor: Annotated[
        float, Key("length of the rotary table over the original context", above=0, flag="")
    ] = 1.0


class FileInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The file store and its text extraction."""

    directory: Annotated[str, Key("where files are kept; empty: until exit", flag="")] = ""
    pdf_command: Annotated[str, Key("program that turns a PDF into text", flag="")] = "pdftotext"
    max_file_bytes: Annotated[int, Key("largest file", 1, 2**40, unit="bytes", flag="")] = (
        52_428_800
    )
    max_request_bytes: Annotated[
        int, Key("all files of one request", 1, 2**40, unit="bytes", flag="")
    ] = 52_428_800
    max_text_bytes: Annotated[
        int, Key("text extracted from one file", 1, 2**40, unit="bytes", flag="")
    ] = 134_217_728
    max_storage_bytes: Annotated[int, Key("all stored files", 1, 2**50, unit="bytes", flag="")] = (
        1_073_741_824
    )
    pdf_timeout_ms: Annotated[
        int, Key("time for one extraction", 1, 3_600_000, unit="ms", flag="")
    ] = 120_000
    workers: Annotated[int, Key("extractions at once", 1, 64, flag="")] = 4


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Backend, capacity, prefill, drafts, forms, kernels and world of one deployment."""

    backend: Annotated[
        Literal["auto", "cpu", "cuda", "scripted"],
        _Backend(
            "what computes; auto: the GPU where one can be used and computes the model",
            now=("cpu", "cuda", "scripted"),
        ),
    ] = "auto"
    load: Annotated[
        Literal["checkpoint", "dummy"],
        _Backend("dummy: seeded random weights from config.json alone, for measuring"),
    ] = "checkpoint"
    devices: Annotated[
        tuple[int, ...],
        _Backend(
            "CUDA device of each rank; empty: a rank's number on its host",
            0,
            255,
            flag="",
            shared=False,
        ),
    ] = ()
    script: Annotated[str, _Backend("JSON lines that the scripted engine plays")] = ""
    step_ms: Annotated[
        float, _Backend("pace of the scripted engine", 0, 60_000, unit="ms per step")
    ] = 0.0
    placement: Annotated[
        Literal["processes", "inline"], _Backend("each role in its process, or all in one")
    ] = "processes"
    threads: Annotated[int, _Backend("threads of the CPU backend; 0: one per core", 0, 1024)] = 0
    pipeline_depth: Annotated[
        int,
        _Backend(
            "plans sent ahead of the verdict before them; -1: 1 on the cuda backend",
            -1,
            1,
        ),
    ] = -1
    decode_graph: Annotated[
        bool, _Backend("replay decode steps as CUDA graphs, on the cuda backend")
    ] = True
    compact_batches: Annotated[
        bool, _Backend("move requests into the lowest slots as others end", now=LATER)
    ] = False
    graph_batch_min_live: Annotated[
        int,
        _Backend("live requests from which decode is batched; 0: automatic", 0, 16, now=LATER),
    ] = 0

    max_concurrency: Annotated[int, _Capacity("requests that execute at once", 1, 16)] = 8
    kv_capacity: Annotated[
        int,
        _Capacity("context pool that all live requests share", 1, 2**40, unit="tokens"),
    ] = 8192
    kv_dtype: Annotated[Literal["bf16", "fp8", "fp4"], _Capacity("form of cached context")] = "bf16"
    default_max_tokens: Annotated[
        int, _Capacity("answer length of a request that names none", 1, _MANY, unit="tokens")
    ] = 256
    queue_limit: Annotated[
        int, _Capacity("requests that may wait; more are refused with 503", 1, _MANY)
    ] = 64
    max_connections: Annotated[int, _Capacity("open HTTP connections", 1, 2**20, shared=False)] = 64
    admission: Annotated[
        Literal["full", "grow"],
        _Capacity("full reserves the whole answer, grow a window at a time"),
    ] = "full"
    admission_window: Annotated[
        int, _Capacity("what grow reserves at a time", 1, _MANY, unit="tokens")
    ] = 256
    admission_gather_ms: Annotated[
        int,
        _Capacity("how long an idle engine waits for the rest of a burst", 0, 1000, unit="ms"),
    ] = 3
    sampling_candidates: Annotated[
        int, _Capacity("candidate tokens that each rank gathers per row", 1, 256)
    ] = 128
    drain_timeout_s: Annotated[
        float, _Capacity("time live requests have to finish at shutdown", 0, 86_400, unit="s")
    ] = 30.0
    stats_interval_s: Annotated[
        float, _Capacity("time between two statistics lines; 0: none", 0, 86_400, unit="s")
    ] = 10.0

    prefill_budget_tokens: Annotated[
        int,
        _Prefill(
            "prompt tokens per step; 0: whole prompts, -1: automatic", -1, _MANY, unit="tokens"
        ),
    ] = -1
    prefill_idle_budget_tokens: Annotated[
        int,
        _Prefill("the same while nothing decodes; 0: no other budget", 0, _MANY, unit="tokens"),
    ] = 0
    prefill: Annotated[
        Literal["exact", "bounded"],
        _Prefill(
            "DeepSeek-V4.1's later layers: over every token of a prompt, or over the last window; "
            "bounded is not exact"
        ),
    ] = "exact"
    prefill_group: Annotated[
        bool, _Prefill("read the chunks of several prompts in one forward", now=LATER)
    ] = True
    prefill_bf16_partials: Annotated[
        bool, _Prefill("sum expert partials in bf16; not exact", now=LATER)
    ] = False
    prefill_fold_scales: Annotated[
        bool, _Prefill("fold group scales into expert weights; not exact", now=LATER)
    ] = False
    prefill_fp8_gemm: Annotated[
        bool, _Prefill("fp8 activations for fp8 projections; not exact", now=LATER)
    ] = False
    prefill_fp8_per_tensor: Annotated[
        bool, _Prefill("per-tensor fp8 projections; not exact", now=LATER)
    ] = False

    prefix_cache_gib: Annotated[
        float, _Cache("snapshots of prompt prefixes; 0: no prefix cache", 0, 65_536, unit="GiB")
    ] = 1.5
    prefix_min_tokens: Annotated[
        int, _Cache("shortest prefix worth a snapshot", 0, 2**40, unit="tokens")
    ] = 1024
    prefix_head_snapshots: Annotated[
        bool, _Cache("also keep the head that prompts have in common")
    ] = True
    prefix_close: Annotated[
        bool, _Cache("also keep finished conversations, as decode left them")
    ] = True

    model_alias: Annotated[str, _Text("name under which the model is served")] = ""
    no_eos: Annotated[bool, _Text("never end at an end token (measurements)")] = False
    reasoning_in_content: Annotated[bool, _Text("leave reasoning inside content")] = False
    tool_args: Annotated[
        Literal["incremental", "whole"],
        _Text("stream tool arguments as they come, or at once"),
    ] = "incremental"
    default_chat_template_kwargs: Annotated[
        dict[str, bool | str],
        _Text(
            "template variables of requests that set none",
            expected="an object of " + ", ".join(TEMPLATE_SWITCHES),
            entries=TEMPLATE_SWITCHES,
            shared=False,
        ),
    ] = {}
    file_inputs: Annotated[
        FileInputs | None,
        _Text("limits of file parts and /v1/files; null: these defaults", shared=False),
    ] = None

    mtp: Annotated[bool, _Drafts("draft tokens with the MTP layer", now=LATER)] = False
    mtp_depth: Annotated[int, _Drafts("drafts per step", 1, 5, now=LATER)] = 1
    mtp_draft: Annotated[
        Literal["auto", "sampled", "greedy"],
        _Drafts("how sampled requests choose their drafts", now=LATER),
    ] = "auto"
    mtp_draft_temperature: Annotated[
        float,
        _Drafts("drafts' temperature over the request's", above=0, high=4, now=LATER),
    ] = 1.0
    mtp_verify: Annotated[
        Literal["token", "block"], _Drafts("accept drafts one by one or jointly", now=LATER)
    ] = "token"
    mtp_expert_format: Annotated[
        Literal["fp8", "bf16_fused", "bf16"],
        _Drafts("how the checkpoint stores the MTP layer's experts"),
    ] = "fp8"
    mtp_schedule: Annotated[
        bool, _Drafts("verify only drafts that are likely to pass", now=LATER)
    ] = False
    mtp_schedule_row_ms: Annotated[
        float, _Drafts("cost of one more verify row", above=0, unit="ms", now=LATER)
    ] = 8.0
    mtp_schedule_base_ms: Annotated[
        float, _Drafts("fixed cost of a verify step", 0, unit="ms", now=LATER)
    ] = 28.0
    mtp_schedule_lambda: Annotated[
        float,
        _Drafts("least value of decode time; 0: derived", 0, unit="tokens/ms", now=LATER),
    ] = 0.0
    mtp_schedule_min_depth: Annotated[int, _Drafts("least drafts verified", 1, 5, now=LATER)] = 1
    mtp_schedule_adapt: Annotated[
        bool, _Drafts("adapt that value to committed tokens", now=LATER)
    ] = True
    mtp_schedule_sampled_scale: Annotated[
        float, _Drafts("acceptance of sampled over greedy requests", 0, 1, now=LATER)
    ] = 0.93
    draft_vocab: Annotated[str, _Drafts(".npy file of token ids that drafts are limited to")] = ""
    lookup_draft: Annotated[
        bool, _Drafts("draft from the request's own text (greedy requests)", now=LATER)
    ] = False
    lookup_tail: Annotated[
        int, _Drafts("verify rows beyond the MTP block for lookup drafts", 0, 64, now=LATER)
    ] = 0
    lookup_nmin: Annotated[int, _Drafts("shortest match that may draft", 1, 64, now=LATER)] = 6
    lookup_nstrong: Annotated[
        int, _Drafts("match from which MTP drafts are replaced", 1, 64, now=LATER)
    ] = 8
    lookup_agree: Annotated[
        int, _Drafts("MTP drafts that a weaker match must equal", 0, 5, now=LATER)
    ] = 2

    dflash_model: Annotated[
        str, _DFlash("block drafter's checkpoint: id or directory", now=LATER)
    ] = ""
    dflash_weights: Annotated[
        Literal["checkpoint", "fp8"], _DFlash("form of the drafter's weights", now=LATER)
    ] = "checkpoint"
    dflash_verify_graph: Annotated[
        bool, _DFlash("verify several slots in one CUDA graph", now=LATER)
    ] = True
    dflash_draft_batch: Annotated[
        bool, _DFlash("draft for all slots in one forward", now=LATER)
    ] = True
    dflash_depth: Annotated[
        int, _DFlash("drafts verified per step; 0: the whole block", 0, 7, now=LATER)
    ] = 0
    dflash_batch_rows: Annotated[
        int, _DFlash("verify rows of a batched step; 0: no limit", 0, 4096, now=LATER)
    ] = 0

    embed_sharding: Annotated[
        Literal["replicated", "vocab"],
        _World("the embedding whole on each rank, or shared out as the head always is"),
    ] = "replicated"
    ngram_table: Annotated[
        Literal["resident", "mmap"], _Forms("n-gram tables in memory, or read from their files")
    ] = "resident"
    ngram_table_model: Annotated[
        str,
        _Forms(
            "checkpoint that holds the n-gram tables, where the model's own has none",
            valid=_is_repository,
            expected="ORG/NAME",
        ),
    ] = ""
    ngram_prestage: Annotated[
        bool, _Forms("fetch the next chunk's table rows ahead", now=LATER)
    ] = True
    dense_weights: Annotated[
        Literal["checkpoint", "fp8"], _Forms("form of dense bf16 projections and head")
    ] = "checkpoint"
    bf16_weights: Annotated[
        Literal["checkpoint", "bf12", "bf12+bf16"],
        _Forms("form of bf16 weights; bf12 is lossless"),
    ] = "checkpoint"
    fp8_head: Annotated[Literal["gemv", "mma"], _Forms("kernel of an fp8 head")] = "gemv"
    rope_scaling: Annotated[RopeScaling | None, _Forms("longer context than the trained one")] = (
        None
    )

    expert_gemm: Annotated[
        Literal["wide", "wide3", "wide4", "wide4r", "narrow"],
        _Kernels("packed int4 expert kernel", now=LATER),
    ] = "wide"
    expert_gemm_prefetch: Annotated[
        int, _Kernels("steps the expert kernel prefetches ahead; 0: off", 0, 16, now=LATER)
    ] = 3
    expert_tile_list: Annotated[
        bool, _Kernels("launch experts over a list of their tiles", now=LATER)
    ] = True
    expert_gemm_pair: Annotated[
        bool, _Kernels("gate and up projection in one launch", now=LATER)
    ] = False
    l2_prefetch: Annotated[
        bool, _Kernels("prefetch weights into L2 during collectives", now=LATER)
    ] = True
    l2_prefetch_form: Annotated[
        Literal["load", "lines", "touch"], _Kernels("how weights are prefetched", now=LATER)
    ] = "load"
    l2_prefetch_window_mib: Annotated[
        int, _Kernels("prefetch window", 1, 64, unit="MiB", now=LATER)
    ] = 12
    l2_prefetch_boundary_window_mib: Annotated[
        int, _Kernels("prefetch window at a collective", 0, 64, unit="MiB", now=LATER)
    ] = 20
    l2_prefetch_boundary_rate: Annotated[
        Literal["off", "light", "full"], _Kernels("rate at a collective", now=LATER)
    ] = "light"
    l2_prefetch_layer_rate: Annotated[
        Literal["off", "light", "full"], _Kernels("rate inside a layer", now=LATER)
    ] = "light"
    l2_prefetch_merge: Annotated[bool, _Kernels("merge neighbouring prefetches", now=LATER)] = True

    collective: Annotated[
        Literal["auto", "shm", "nccl", "verbs"],
        _World("how ranks exchange data"),
    ] = "auto"
    cluster_token_file: Annotated[
        str, _World("file of the secret that ranks have in common, mode 0600", shared=False)
    ] = ""
    rendezvous_timeout_ms: Annotated[
        int, _World("time ranks have to join", 1, 2**31 - 1, unit="ms")
    ] = 120_000
    bulk_pace_gbps: Annotated[
        float,
        _World(
            "pace of bulk transfers per queue pair; 0: none, -1: from the link",
            0,
            10_000,
            also=(-1,),
            unit="Gbit/s",
        ),
    ] = -1.0
    bulk_inflight: Annotated[
        int,
        _World("bulk stripes in flight per peer and lane; -1: 4", 1, 1024, also=(-1,)),
    ] = -1
