"""`engine.load: dummy`: the whole server path from a config.json alone."""

from __future__ import annotations

import json
import shutil

import pytest
from serving import ROOT, TINY

# The first server may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

CONFIG = ROOT / "tests" / "fixtures" / "glm-4.7-nvfp4" / "config.json"


def test_a_config_file_alone_serves_token_ids(serve, tmp_path):
    model = tmp_path / "sizes.json"
    shutil.copy(CONFIG, model)
    server = serve(model=model, backend="cpu", load="dummy", kv_capacity=1024)
    body = {"model": server.model(), "prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0}
    status, answer = server.post("/v1/completions", body)
    assert status == 200
    ids = [int(number) for number in answer["choices"][0]["text"].split(" ")[1:]]
    assert len(ids) == answer["usage"]["completion_tokens"] == 6
    # The weights are seeded, and what was read is what is read: the answer goes on as it did.
    again = body | {"prompt": [1, 2, 3, *ids[:2]], "max_tokens": 4}
    assert server.post("/v1/completions", again)[1]["choices"][0]["text"].split() == [
        str(token) for token in ids[2:]
    ]
    for path, prompt in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        status, answer = server.post(path, {"model": server.model(), **prompt})
        assert status == 400
        assert "has no tokenizer: send token ids" in answer["error"]["message"]
    assert server.stop() == 0
    assert "engine.load dummy: random weights" in server.log
    assert "no tokenizer: only token ids are served" in server.log


def test_tokenizer_files_beside_the_config_serve_text(serve, tmp_path):
    for file in TINY.iterdir():
        shutil.copy(file, tmp_path / file.name)
    shutil.copy(CONFIG, tmp_path / "config.json")
    server = serve(
        model=tmp_path, backend="cpu", load="dummy", kv_capacity=1024, placement="inline"
    )
    status, answer = server.post(
        "/v1/chat/completions",
        {
            "model": server.model(),
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4,
            "ignore_eos": True,
        },
    )
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 4
    assert server.stop() == 0


def test_weights_are_asked_for_unless_told_otherwise(serve, tmp_path):
    model = tmp_path / "sizes.json"
    model.write_text(json.dumps({}))
    server = serve(model=model, backend="cpu", ready=False)
    assert server.process.wait(30) == 1
    assert "a file alone needs engine.load dummy" in server.log
