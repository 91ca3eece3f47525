"""Plans sent ahead of verdicts, between real processes: the same answers as one step at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

LINES = [{"ids": [*range(40, 75)], "undecided": 6}]


def answers(server) -> list[str]:
    def ask(number: int) -> str:
        body = {
            "model": server.model(),
            "messages": [{"role": "user", "content": "go"}],
            "max_tokens": 20 + 30 * number,
            "temperature": number % 2,
            "presence_penalty": 0.5 * (number == 3),
            "ignore_eos": True,
        }
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(ask, range(6)))


def test_answers_are_those_of_one_step_at_a_time(serve):
    plain, ahead = (
        answers(serve(script=LINES, placement=place, max_concurrency=4, pipeline_depth=depth))
        for place, depth in (("inline", 0), ("processes", 1))
    )
    assert plain == ahead
    assert len(set(plain)) == 6


def test_a_depth_that_the_engine_has_not_is_refused(serve):
    server = serve(script=[{"ids": [5], "per_step": [2]}], pipeline_depth=1, ready=False)
    assert server.process.wait(30) == 1
    assert "engine.pipeline_depth: 1 needs steps of one token" in server.log
