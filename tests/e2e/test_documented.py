"""The document that a server serves, held against what that server answers."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from dgpp.serve.openapi.document import POSTS


@pytest.fixture(scope="module")
def whole(small):
    return json.loads(small.get("/openapi.json")[1])


def upload(name, data):
    parts = (("file", f'; filename="{name}"', data), ("purpose", "", b"user_data"))
    body = b"".join(
        f'--b\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n'.encode()
        + value
        + b"\r\n"
        for field, more, value in parts
    )
    return body + b"--b--\r\n"


def check(whole, path, method, status, kind, body):
    answer = whole["paths"][path][method]["responses"][str(status)]["content"][kind]["schema"]
    Draft202012Validator({**answer, "components": whole["components"]}).validate(body)


@pytest.mark.parametrize("post", POSTS, ids=lambda post: post.path)
def test_every_example_is_answered_as_stated(small, whole, post):
    stated = whole["paths"][post.path]["post"]["requestBody"]["content"]["application/json"]
    for name, example in stated["examples"].items():
        body = json.dumps(example["value"]).encode()
        status, answer = small.request("POST", post.path, body)
        assert status == 200, (name, answer)
        if example["value"].get("stream") and post.streams:
            assert answer.startswith((b"data: ", b"event: ")), name
            assert b'"error":{' not in answer
        else:
            check(whole, post.path, "post", 200, "application/json", json.loads(answer))
    status, refusal = small.post(post.path, b'{"model": 5')
    check(whole, post.path, "post", status, "application/json", refusal)


def test_every_other_path_answers_as_stated(small, whole):
    kind, form = "multipart/form-data; boundary=b", upload("a.txt", b"text")
    status, answer = small.request("POST", "/v1/files", form, kind)
    check(whole, "/v1/files", "post", status, "application/json", json.loads(answer))
    file = json.loads(answer)["id"]
    for path, methods in whole["paths"].items():
        if "get" not in methods:
            continue
        name = file if path.startswith("/v1/files/") else small.model()
        status, answer = small.get(path.replace("{id}", name))
        assert status == 200
        kind = next(iter(methods["get"]["responses"]["200"]["content"]))
        body = json.loads(answer) if kind == "application/json" else answer.decode()
        check(whole, path, "get", 200, kind, body)
    status, answer = small.request("DELETE", f"/v1/files/{file}")
    check(whole, "/v1/files/{id}", "delete", status, "application/json", json.loads(answer))
    status, answer = small.get(f"/v1/files/{file}/content")
    check(whole, "/v1/files/{id}/content", "get", status, "application/json", json.loads(answer))
    status, answer = small.get("/v1/models/no/such")
    check(whole, "/v1/models/{id}", "get", status, "application/json", json.loads(answer))
