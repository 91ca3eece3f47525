"""Files as a client of the official SDK sends them, and what becomes of them in a prompt."""

from __future__ import annotations

import base64
import io

import openai
import pytest

LIMITS = {"max_file_bytes": 400, "max_request_bytes": 500, "max_storage_bytes": 700}


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(step_ms=0, placement="inline", file_inputs=LIMITS)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as found:
        yield found


def keep(client, data: bytes, name: str = "notes.txt"):
    return client.files.create(file=(name, io.BytesIO(data)), purpose="user_data")


def tokens(client, server, *parts) -> int:
    answer = client.chat.completions.create(
        model=server.model(), messages=[{"role": "user", "content": list(parts)}], max_tokens=1
    )
    return answer.usage.prompt_tokens


def test_a_file_is_kept_read_listed_and_deleted(client, server):
    data = "Zebra é\n".encode()
    file = keep(client, data)
    assert (file.bytes, file.filename, file.purpose) == (len(data), "notes.txt", "user_data")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == data
    assert [one.id for one in client.files.list()] == [file.id]
    shown = {"type": "text", "text": f"\n[Document: notes.txt]\n{data.decode()}\n[End document]\n"}
    by_id = {"type": "file", "file": {"file_id": file.id}}
    given = {"filename": "notes.txt", "file_data": base64.b64encode(data).decode()}
    expected = tokens(client, server, shown)
    assert tokens(client, server, by_id) == expected
    assert tokens(client, server, {"type": "file", "file": given}) == expected
    part = {"type": "input_file", "file_id": file.id}
    asked = [{"role": "user", "content": [part]}]
    answer = client.responses.create(model=server.model(), input=asked, max_output_tokens=1)
    assert answer.usage.input_tokens == expected
    counts = []
    for block in ({"type": "document", "source": {"type": "file", "file_id": file.id}}, shown):
        body = {"model": server.model(), "messages": [{"role": "user", "content": [block]}]}
        counts.append(server.post("/v1/messages/count_tokens", body))
    assert counts[0] == counts[1]
    assert counts[0][0] == 200
    assert client.files.delete(file.id).deleted
    assert client.files.list().data == []
    with pytest.raises(openai.NotFoundError) as caught:
        tokens(client, server, by_id)
    assert caught.value.code == "file_not_found"
    assert caught.value.param == "messages[0].content[0].file.file_id"


def test_limits_are_named(client, server):
    with pytest.raises(openai.APIStatusError) as caught:
        keep(client, b"x" * 401)
    assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
    assert "engine.file_inputs.max_file_bytes = 400" in caught.value.message
    kept = [keep(client, b"x" * 350), keep(client, b"y" * 350)]
    with pytest.raises(openai.APIStatusError) as caught:
        keep(client, b"z")
    assert (caught.value.status_code, caught.value.code) == (413, "file_storage_full")
    assert "engine.file_inputs.max_storage_bytes = 700" in caught.value.message
    both = [{"type": "file", "file": {"file_id": one.id}} for one in kept]
    with pytest.raises(openai.APIStatusError) as caught:
        tokens(client, server, *both)
    assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
    assert "engine.file_inputs.max_request_bytes = 500" in caught.value.message
    assert caught.value.param == "messages[0].content[1].file"
    for one in kept:
        client.files.delete(one.id)
    status, _ = server.request("POST", "/v1/files", b"{}")
    assert status == 415
    status, _ = server.request("GET", "/v1/files/../x")
    assert status == 404
