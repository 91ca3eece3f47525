from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dgpp.text.holdback import HoldBack

letters = st.text("ab<", min_size=1, max_size=5).map(str.encode)


def bytewise(stream: bytes, markers: list[bytes]) -> tuple[bytes, int | None]:
    """The rule itself: after each byte, does a marker end here? The longest wins."""
    for end in range(1, len(stream) + 1):
        ending = [m for m in markers if stream[:end].endswith(m)]
        if ending:
            return stream[: end - max(map(len, ending))], end
    return stream, None


@given(
    st.text("ab<", max_size=30).map(str.encode),
    st.lists(letters, min_size=1, max_size=4),
    st.lists(st.integers(1, 7), max_size=30),
)
def test_any_cut_gives_the_bytewise_answer(
    stream: bytes, markers: list[bytes], cuts: list[int]
) -> None:
    router = HoldBack(tuple(markers))
    out, end, rest = b"", None, stream
    for size in [*cuts, len(stream) or 1]:
        piece, rest = rest[:size], rest[size:]
        released, match = router.push(piece)
        out += released
        if match is not None:
            end = match.end
            break
        seen = stream[: len(stream) - len(rest)]
        free = next(
            at
            for at in range(len(seen) + 1)
            if any(m.startswith(seen[at:]) and len(m) > len(seen) - at for m in markers)
        )
        assert out == seen[:free], "exactly the longest possible beginning is held back"
    else:
        out += router.flush()
    assert (out, end) == bytewise(stream, markers)


def test_no_marker_in_sight_holds_nothing() -> None:
    router = HoldBack((b"</end>",))
    assert router.push(b"1 < 2") == (b"1 < 2", None)
    assert router.push(b"ok </en") == (b"ok ", None)
    assert router.push(b"ough") == (b"</enough", None)
    assert router.flush() == b""
