"""Every limit on what a request may ask for, behind all front ends."""

from __future__ import annotations

from dgpp.sched.request import HIGHEST_PRIORITY

JSON_DEPTH = 64
"""Objects and arrays inside one another, before any recursive code sees them."""

JSON_NUMBER_CHARS = 128
"""Characters of one number."""

JSON_VALUES = 2_000_000
"""Values in one body: two bytes of JSON can become a hundred of memory."""

JSON_STRINGS = 500_000

TEXT_BODY_BYTES = 32 << 20
"""A JSON body, whatever larger bodies `http.max_body_bytes` would allow."""

INLINE_BODY_BYTES = 128 << 10
"""Larger bodies are parsed off the event loop, one after the other."""

BODIES_BYTES = 128 << 20
"""All bodies that are being read or parsed; over it a further one is refused as overload."""

DOCUMENT_CHARS = 16 << 20
"""Of the text of all files of one request."""

MESSAGES = 8192
CONTENT_PARTS = 4096
TOOL_CALLS = 1024
TOOLS = 128
SCHEMA_CHARS = 1 << 18
"""The text of one schema or grammar."""
NAME_CHARS = 256
"""`name` of a message, ids and names of calls."""

CHOICES = 128
"""`n`, and the prompts of one legacy request."""

TIMEOUT_S = 86_400.0
"""`timeout_s`, a day."""

MAX_TOKENS = 2**31 - 1
TOP_K = 2**31 - 1
REPETITION_PENALTY = 100.0
LEAST_REPETITION_PENALTY = 0.01
"""Scores times its inverse stay numbers."""

LEAST_TEMPERATURE = 1e-5
"""Below it a request is greedy: scores divided by it stay numbers."""

TOKENS = 1 << 20
"""Ids of one /detokenize."""

STOP_STRINGS = 4
STOP_BYTES = 256
LOGIT_BIAS_IDS = 1024
LOGIT_BIAS = 100.0
TOP_LOGPROBS = 20
LEGACY_LOGPROBS = 5
SCORED_TOKENS = 1 << 16
"""Prompt tokens of one request whose log probabilities are told."""
PING_INTERVAL = 2**31 - 1
PRIORITY = HIGHEST_PRIORITY
METADATA_KEYS = 16
METADATA_KEY_CHARS = 64
METADATA_VALUE_CHARS = 512
SAFETY_IDENTIFIER_CHARS = 64
ECHOED_CHARS = 200
"""How much of a client's value an error message repeats."""

HEAD_BYTES = 16 << 10
"""Request line and headers together, and each line of them."""

HEAD_SECONDS = 10
BODY_SECONDS = 30
BODY_BYTES_PER_SECOND = 1 << 20
"""A body may take BODY_SECONDS and, on top, its size at this rate."""

IDLE_SECONDS = 75
"""A kept-alive connection without a request is closed."""

STREAM_BUFFER_BYTES = 1 << 20
"""Events a client has not read yet, beyond the kernel's buffer; over it the stream is given up."""

STREAM_STALL_SECONDS = 30
"""A client that reads nothing for this long while events wait is given up."""
