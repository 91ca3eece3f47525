"""Weights packed and kept in an image, context packed: twice started, the same answers."""

from __future__ import annotations

import shutil

import pytest
from serving import ROOT, TINY

CHAT = "/v1/chat/completions"
# The first server may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for source in (TINY, ROOT / "tests" / "fixtures" / "glm-4.7-bf16"):
        for file in source.iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def answer(server) -> str:
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": "packed " * 30}],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, found = server.post(CHAT, body)
    assert status == 200, found
    return found["choices"][0]["message"]


def test_a_second_start_restores_the_image_and_answers_as_before(serve, model, tmp_path) -> None:
    images = tmp_path / "images"
    engine = {
        "backend": "cpu", "threads": 1, "max_concurrency": 2, "kv_capacity": 1024,
        "bf16_weights": "bf12", "kv_dtype": "fp8", "placement": "inline",
    }  # fmt: skip
    start = {"model": model, **engine}
    flags = ("--set", f"paths.resident_cache={images}")
    said = []
    for _ in range(2):
        server = serve(flags=flags, **start)
        said.append(answer(server))
        assert server.stop() == 0
        log = server.log
        assert "kv_dtype fp8: rows of cached context are packed" in log
        assert " MiB of bf16 are held as " in log
        assert "warning" not in log
    assert said[0] == said[1]
    assert len(list(images.glob("*rank0of1.img"))) == 1
    assert log.count(" restored in ") == 1
    assert " written in " not in log
    assert "weights built" not in log


def test_a_form_that_does_not_apply_ends_the_start(serve, model) -> None:
    server = serve(model=model, ready=False, backend="cpu", kv_dtype="fp4")
    assert server.process.wait(60) == 1
    assert "engine.kv_dtype: fp4 does not apply to glm-4.7" in server.log
