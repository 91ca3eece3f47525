"""API keys, names that a request may be addressed to, request ids."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from dgpp.errors import ConfigError
from dgpp.serve.access import ApiKeys, check_names, request_id
from dgpp.serve.errors import ApiError

ONE, TWO = "sk-" + "a" * 20, "sk-" + "b" * 20
KEYS = ApiKeys.parse(f"# mine\n\n{ONE}\r\n  {TWO}  \n".encode(), "f")


def test_a_file_has_a_key_a_line_and_remembers_none():
    assert len(KEYS) == 2
    assert KEYS.know(ONE)
    assert KEYS.know(TWO)
    assert not any(
        KEYS.know(key) for key in ("", ONE[:-1], ONE + "a", ONE + TWO, "# mine", "\udc80")
    )
    assert ONE not in repr(vars(KEYS))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no key"),
        (b"# only a word\n\n", "holds no key"),
        (b"short\n", "line 1: a key has 16 to 512"),
        (ONE.encode() + b"\n" + b"x" * 513, "line 2: a key has 16 to 512"),
        (b"sixteen chars and more", "no blanks"),
        ("schlüssel-schlüssel".encode(), "visible ASCII"),
        (b"\n".join(b"%016d" % n for n in range(1025)), "1025 keys, at most 1024"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_without_repeating_it(content, said):
    with pytest.raises(ConfigError, match=said) as caught:
        ApiKeys.parse(content, "keys.txt")
    assert "http.api_key_file = keys.txt" in str(caught.value)
    assert "schl" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "required"),
        ({"Authorization": "Bearer"}, "required"),
        ({"Authorization": f"Basic {ONE}"}, "required"),
        ({"Authorization": f"Bearer {ONE}x"}, "not known"),
        ({"X-Api-Key": ONE[:-1]}, "not known"),
        ({"Authorization": f"Bearer {ONE}x", "X-Api-Key": ONE}, "not known"),
        ({"Authorization": f"Bearer {ONE}"}, None),
        ({"Authorization": f"bearer   {TWO} "}, None),
        ({"X-Api-Key": TWO}, None),
        ({"Authorization": "Bearer ", "X-Api-Key": ONE}, None),
    ],
)
def test_keys_come_in_either_header(headers, said):
    if said is None:
        KEYS.check(CIMultiDict(headers))
        return
    with pytest.raises(ApiError, match=said) as caught:
        KEYS.check(CIMultiDict(headers))
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


GOOD_HOSTS = (
    "localhost localhost:18080 LOCALHOST:1 127.0.0.1:5 127.9.9.9 [::1]:80 a.localhost mine:8"
)
BAD_HOSTS = "evil.com 127.evil.com 127.0.0.1.evil.com localhost.evil.com evil.com:18080 10.0.0.1 x"
BAD_HOSTS += " [::2] [::1 user@evil.com localhost@evil.com 0.0.0.0 minex xmine"


@pytest.mark.parametrize("host", GOOD_HOSTS.split())
def test_this_host_may_be_named(host):
    check_names(CIMultiDict({"Host": host}), {"mine"})
    check_names(CIMultiDict({"Host": host, "Origin": f"http://{host}"}), {"mine"})
    check_names(CIMultiDict(), {"mine"})


@pytest.mark.parametrize("host", [*BAD_HOSTS.split(), ""])
def test_other_hosts_may_not(host):
    for headers in ({"Host": host}, {"Host": "localhost", "Origin": f"https://{host}"}):
        with pytest.raises(ApiError, match="names another host") as caught:
            check_names(CIMultiDict(headers), {"mine"})
        assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")


def test_an_origin_that_hides_itself_is_another():
    with pytest.raises(ApiError, match="Origin"):
        check_names(CIMultiDict({"Host": "localhost", "Origin": "null"}), ())


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_a_request_id_is_repeated_only_where_that_is_safe(text):
    safe = set(string.ascii_letters + string.digits + "._:/+=-")
    found = request_id(text)
    assert set(found) <= safe | {"_"}
    assert (found == text) == (1 <= len(text) <= 128 and set(text) <= safe)
    assert request_id(None) != request_id(None)
