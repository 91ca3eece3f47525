"""Who may join, with whose settings; and what each refusal says."""

from __future__ import annotations

import msgspec
import pytest

from dgpp.errors import ConfigError
from dgpp.net.journal_errors import JoinError
from dgpp.net.journal_join import Identity, MisfitError, Roster, StrangerError
from dgpp.net.journal_messages import Challenge, Joined
from dgpp.net.journal_token import load_token

TOKEN = b"0123456789abcdef"
FACTS = {"settings": "aa", "model": "bb"}
CHALLENGE = Challenge(b"c" * 32)
NONCE = b"n" * 32


def identity(rank=1, world=3, version="1.0", settings="aa", token=TOKEN) -> Identity:
    return Identity(rank=rank, world=world, version=version, settings=settings, token=token)


def roster() -> Roster:
    return Roster(identity(rank=0), b'{"model":"m"}', FACTS)


def test_ranks_join_and_progress_is_told():
    mine = roster()
    assert mine.progress() == "joined: none; missing: 1, 2"
    for rank in (2, 1):
        theirs = identity(rank)
        hello = theirs.hello(CHALLENGE, NONCE)
        welcome = mine.greet(hello, CHALLENGE)
        theirs.check_welcome(welcome, CHALLENGE, NONCE)
        assert welcome.settings == b'{"model":"m"}'
        assert not mine.adopts(hello)
        mine.join(rank, Joined(FACTS))
    assert mine.missing == []
    assert mine.progress() == "joined: 1, 2; missing: none"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"version": "1.1"}, "rank 1 runs version 1.1, rank 0 1.0"),
        ({"world": 2}, "rank 1 is of a world of 2, this one has 3"),
        ({"rank": 0}, "rank 0 is outside 1..2"),
        ({"rank": 3}, "rank 3 is outside 1..2"),
        ({"rank": -1}, "rank -1 is outside 1..2"),
    ],
)
def test_a_rank_that_does_not_fit_is_named(other, said):
    mine = roster()
    with pytest.raises(MisfitError, match=said):
        mine.greet(identity(**other).hello(CHALLENGE, NONCE), CHALLENGE)
    assert mine.missing == [1, 2]


def test_a_wrong_token_is_a_stranger_on_both_sides():
    mine, theirs = roster(), identity(token=b"another token 16")
    with pytest.raises(StrangerError, match="wrong cluster token"):
        mine.greet(theirs.hello(CHALLENGE, NONCE), CHALLENGE)
    welcome = mine.greet(identity().hello(CHALLENGE, NONCE), CHALLENGE)
    with pytest.raises(JoinError, match="rank 0 does not know"):
        theirs.check_welcome(welcome, CHALLENGE, NONCE)


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 2), ("version", "2"), ("world", 4), ("settings", "zz")]
)
def test_a_proof_covers_all_that_the_hello_says(field, value):
    hello = msgspec.structs.replace(identity().hello(CHALLENGE, NONCE), **{field: value})
    with pytest.raises(StrangerError):
        roster().greet(hello, CHALLENGE)


def test_a_proof_answers_one_challenge_only():
    with pytest.raises(StrangerError):
        roster().greet(identity().hello(CHALLENGE, NONCE), Challenge(b"d" * 32))


def test_the_settings_in_a_welcome_are_proved_too():
    mine, theirs = roster(), identity()
    welcome = mine.greet(theirs.hello(CHALLENGE, NONCE), CHALLENGE)
    forged = msgspec.structs.replace(welcome, settings=b'{"model":"x"}')
    with pytest.raises(JoinError, match="rank 0 does not know"):
        theirs.check_welcome(forged, CHALLENGE, NONCE)


def test_short_nonces_are_refused():
    with pytest.raises(StrangerError, match="nonce of 3 bytes"):
        identity().hello(Challenge(b"abc"), NONCE)
    with pytest.raises(StrangerError, match="nonce of 3 bytes"):
        roster().greet(identity().hello(CHALLENGE, b"abc"), CHALLENGE)


def test_a_rank_comes_once_unless_its_connection_ended():
    mine, hello = roster(), identity().hello(CHALLENGE, NONCE)
    mine.greet(hello, CHALLENGE)
    with pytest.raises(MisfitError, match="rank 1 came twice"):
        mine.greet(hello, CHALLENGE)
    mine.forget(1)
    mine.greet(hello, CHALLENGE)
    mine.join(1, Joined(FACTS))
    assert mine.missing == [2]


def test_other_settings_give_way_and_other_facts_do_not():
    mine = roster()
    hello = identity(settings="other").hello(CHALLENGE, NONCE)
    mine.greet(hello, CHALLENGE)
    assert mine.adopts(hello)
    with pytest.raises(MisfitError) as failed:
        mine.join(1, Joined({"settings": "aa", "model": "cc", "more": "dd"}))
    assert str(failed.value) == (
        "rank 1 differs from rank 0: model is cc, on rank 0 bb; more is dd, on rank 0 absent"
    )


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (b"short", 0o600, "this one 5"),
        (b"  \n", 0o600, "this one 0"),
        (b"x" * 5000, 0o600, "over 4096 bytes"),
        (TOKEN, 0o640, "others may read it"),
        (TOKEN, 0o604, "others may read it"),
    ],
)
def test_a_token_file_that_is_none_is_named(tmp_path, text, mode, said):
    file = tmp_path / "token"
    file.write_bytes(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"engine.cluster_token_file = {file}: .*{said}"):
        load_token(str(file))


def test_a_token_file_is_read_without_its_line_end(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    file.chmod(0o600)
    assert load_token(str(file)) == TOKEN
    with pytest.raises(ConfigError, match="No such file"):
        load_token(str(tmp_path / "absent"))
