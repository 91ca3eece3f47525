"""CUDA C++ of this project to C++ that a host compiler takes, with cuda_host.h before it."""

from __future__ import annotations

import re

_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+(\w+)\[\];")
_ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"[a-z][\w.:]*")
KERNEL = re.compile(
    r"\bEMULATED_KERNEL\s+void\s+(?:__attribute__\s*\(\(.*?\)\)\s+)?(\w+)\s*\(", re.DOTALL
)


class UnknownSyntaxError(Exception):
    """Inline assembly that is not one plain instruction."""


def translate(source: str) -> str:
    """`source` with dynamic shared memory and inline assembly replaced by calls."""
    source = _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(emulated::dynamic_shared());", source)
    parts, at = [], 0
    for found in _ASM.finditer(source):
        end = _closing(source, found.end())
        parts += [source[at : found.start()], _call(source[found.end() : end])]
        at = end + 1
    return "".join([*parts, source[at:]])


def _closing(text: str, at: int) -> int:
    """Where the parenthesis ends that was opened before `at`."""
    depth, quoted = 1, False
    for index in range(at, len(text)):
        char = text[index]
        if char == '"' and text[index - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char == "(") - (char == ")")
            if depth == 0:
                return index
    raise UnknownSyntaxError("an asm statement does not end")


def _split(text: str, separator: str) -> list[str]:
    """`text` cut at separators outside strings, parentheses and brackets."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif not quoted:
            depth += (char in "([{") - (char in ")]}")
            if char == separator and depth == 0:
                parts.append(text[start:index])
                start = index + 1
    return [*parts, text[start:]]


def _call(statement: str) -> str:
    """`"op %0, %1;" : "=r"(a) : "r"(b)` → `ptx_op(a, b)`; literal numbers of the operands last."""
    template, *operands = _split(statement, ":")
    text = "".join(_STRING.findall(template)).strip()
    name = _NAME.match(text)
    if name is None or text.count(";") != 1 or not text.endswith(";"):
        raise UnknownSyntaxError(f"not one plain instruction: {text}")
    # The third part lists what is clobbered.
    values = [
        value.strip()[value.strip().index("(") + 1 : -1]
        for part in operands[:2]
        for value in _split(part, ",")
        if value.strip()
    ]
    rest = text[name.end() : -1]
    literals = re.findall(r"(?<![\w%.])(\d+)(?![\w.])", re.sub(r"\[[^]]*\]", "", rest))
    mangled = re.sub(r"\W+", "_", name.group())
    return f"ptx_{mangled}({', '.join([*values, *literals])})"
