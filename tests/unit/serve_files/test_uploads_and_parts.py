"""Uploads are read strictly, and file parts become the text that models read."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.serve.anthropic.request import parse_messages
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.fields import Fields
from dgpp.serve.files.parts import decode_data, file_parts, is_pdf, plain_text
from dgpp.serve.files.upload import parse_upload
from dgpp.serve.responses_api.request import parse_response
from dgpp.serve.served import ServedModel

MODEL = ServedModel("m", 512, 4096, 4096)
KIND = "multipart/form-data; boundary=b"
FILE = b'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhi'
PURPOSE = b'Content-Disposition: form-data; name="purpose"\r\n\r\nuser_data'


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


@given(
    st.binary(max_size=60), st.text(st.characters(codec="utf-8", categories=["L", "P"]), min_size=1)
)
def test_what_is_sent_is_read_byte_for_byte(data: bytes, name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    head = f'Content-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
    head += "Content-Type: text/plain\r\n\r\n"
    kind = 'multipart/form-data; boundary="----long=="'
    body = b"".join(
        b"------long==\r\n" + part + b"\r\n" for part in (PURPOSE, head.encode() + data)
    )
    found = parse_upload(kind, body + b"------long==--")
    assert found == (name, "user_data", data)


@pytest.mark.parametrize(
    ("kind", "body", "status", "param"),
    [
        ("application/json", b"{}", 415, "Content-Type"),
        ("multipart/form-data", form(FILE, PURPOSE), 400, "Content-Type"),
        ("multipart/form-data; boundary=" + "b" * 71, form(FILE, PURPOSE), 400, "Content-Type"),
        ("multipart/form-data; boundary=b; boundary=b", form(FILE, PURPOSE), 400, None),
        (KIND, b"", 400, None),
        (KIND, form(FILE), 400, "purpose"),
        (KIND, form(PURPOSE), 400, "file"),
        (KIND, form(FILE, FILE, PURPOSE), 400, "file"),
        (KIND, form(FILE, PURPOSE, PURPOSE.replace(b"purpose", b"other")), 400, "other"),
        (KIND, form(FILE, PURPOSE.replace(b"user_data", b"vision")), 400, "purpose"),
        (KIND, form(FILE.replace(b"a.txt", b""), PURPOSE), 400, "file"),
        (KIND, form(FILE.replace(b"a.txt", b"a" * 1025), PURPOSE), 400, "file"),
        (KIND, form(FILE.replace(b"a.txt", b"a\x01b"), PURPOSE), 400, "file"),
        (KIND, form(FILE.replace(b'"file"', b'"file"; name="file"'), PURPOSE), 400, None),
        (KIND, form(b"X: y\r\n\r\nhi"), 400, None),
        (KIND, form(b"X" * 20_000 + b"\r\n\r\nhi"), 400, None),
        (KIND, form(FILE, PURPOSE, end=b""), 400, None),
        (KIND, form(FILE, PURPOSE) + b"more", 400, None),
        (KIND, form(b"Content-Transfer-Encoding: base64\r\n" + FILE, PURPOSE), 400, None),
    ],
)
def test_other_bodies_are_refused_by_what_is_wrong(kind, body, status, param):
    with pytest.raises(ApiError) as caught:
        parse_upload(kind, body)
    assert (caught.value.status, caught.value.param) == (status, param)


@given(st.binary(max_size=40).map(lambda data: b"--b\r\n" + data), st.booleans())
def test_no_body_is_the_parsers_fault(body, closed):
    with pytest.raises(ApiError):
        parse_upload(KIND, body + (b"\r\n--b--" if closed else b""))


@given(st.binary(max_size=40))
def test_base64_is_canonical_or_refused(data):
    text = base64.b64encode(data).decode()
    assert decode_data(text, "p") == data
    assert decode_data(f"data:text/plain;base64,{text}", "p") == data
    for other in (text.rstrip("=") + "!", text + "=", text + "\n", f" {text}"):
        with pytest.raises(ApiError) as caught:
            decode_data(other, "p")
        assert (caught.value.code, caught.value.param) == ("invalid_file", "p")
    with pytest.raises(ApiError):
        decode_data("QQ=", "p")
    with pytest.raises(ApiError):
        decode_data("QR==", "p")


def chat(*parts, role="user"):
    return Fields({"model": "m", "messages": [{"role": role, "content": list(parts)}]})


def test_a_part_becomes_text_where_it_stood():
    file = {"filename": "n.md", "file_data": "aGk="}
    fields = chat({"type": "text", "text": "A"}, {"type": "file", "file": file})
    [part] = file_parts("chat", fields)
    assert (part.filename, part.file_id, part.data) == ("n.md", None, "aGk=")
    part.fill("n.md", "hi")
    [message] = parse_chat(fields, "r", MODEL).messages
    assert message.content == "A\n[Document: n.md]\nhi\n[End document]\n"


def test_responses_have_it_flat():
    part = {"type": "input_file", "file_id": "file-1"}
    fields = Fields({"model": "m", "input": [{"role": "user", "content": [part]}]})
    [found] = file_parts("responses", fields)
    assert (found.file_id, found.path) == ("file-1", "input[0].content[0]")
    found.fill("a.py", "x = 1")
    [message] = parse_response(fields, "r", MODEL).messages
    assert message.content == "\n[Document: a.py]\nx = 1\n[End document]\n"


def documents(*parts):
    messages = [{"role": "user", "content": list(parts)}]
    return Fields({"model": "m", "max_tokens": 1, "messages": messages})


def test_anthropics_documents_have_a_source():
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    plain = {"type": "text", "media_type": "text/plain", "data": "Quokka"}
    fields = documents(
        {"type": "document", "source": pdf, "title": "Report"},
        {"type": "document", "source": plain},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
    )
    found = file_parts("messages", fields)
    assert [part.filename for part in found] == ["Report", "document.txt", ""]
    assert [part.data for part in found] == ["JVBERi0=", None, None]
    assert [part.text for part in found] == [None, "Quokka", None]
    assert [part.file_id for part in found] == [None, None, "file-1"]
    for part in found:
        part.fill("n", "t")
    [message] = parse_messages(fields, "r", MODEL).messages
    assert message.content == "\n".join(["\n[Document: n]\nt\n[End document]\n"] * 3)
    for source in (
        {},
        {"type": "url", "url": "http://a"},
        {"type": "base64", "media_type": "image/png", "data": "AA=="},
        {"type": "text", "media_type": "application/pdf", "data": "x"},
    ):
        body = documents({"type": "document", "source": source})
        with pytest.raises(ApiError) as caught:
            file_parts("messages", body)
        assert str(caught.value.param).startswith("messages[0].content[0].source")


@pytest.mark.parametrize(
    ("file", "param"),
    [
        ({}, ""),
        ({"file_id": "f", "file_data": "aGk="}, ""),
        ({"file_data": "aGk="}, ".filename"),
        ({"filename": "", "file_data": "aGk="}, ".filename"),
        ({"file_id": 5}, ".file_id"),
        ({"file_id": "f", "x": 1}, ".x"),
        ({"file_url": "http://a"}, ".file_url"),
    ],
)
def test_a_malformed_part_is_refused_by_its_member(file, param):
    with pytest.raises(ApiError) as caught:
        file_parts("chat", chat({"type": "file", "file": file}))
    assert caught.value.status == 400
    assert caught.value.param == f"messages[0].content[0].file{param}"


def test_parts_belong_to_users_and_are_read_nowhere_else():
    part = {"type": "file", "file": {"file_id": "f"}}
    assert file_parts("chat", chat(part, role="assistant")) == []
    assert file_parts("completion", Fields({"prompt": "x"})) == []
    for odd in (None, 5, "x", [5], [{"role": "user"}], [{"role": "user", "content": [3]}]):
        assert file_parts("chat", Fields({"messages": odd})) == []
    with pytest.raises(ApiError, match="is not a content type for the role assistant"):
        parse_chat(chat(part, role="assistant"), "r", MODEL)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(ApiError) as caught:
        parse_chat(json.dumps(chat(image).members).encode(), "r", MODEL)
    assert caught.value.code == "unsupported_content_type"
    assert caught.value.param == "messages[0].content[0].type"


def test_text_is_told_by_name_and_must_be_text():
    assert plain_text("a.PY", "é".encode(), "p") == "é"
    assert is_pdf(b"%PDF-1.7")
    for name, data in (("a.exe", b"x"), ("a", b"x"), ("a.txt", b"\xff"), ("a.txt", b"a\0")):
        with pytest.raises(ApiError) as caught:
            plain_text(name, data, "p")
        assert (caught.value.code, caught.value.param) == ("invalid_file", "p")
