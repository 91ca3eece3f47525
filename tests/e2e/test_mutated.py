"""A slice of scripts/mutate_http.py: whatever comes in, an answer that is documented."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutate_http.py"


def test_mutated_requests_get_documented_answers_and_leave_nothing(small):
    script = runpy.run_path(str(SCRIPT))
    maker = script["Maker"](11, small.model())
    report = script["bombard"]([maker.shot() for _ in range(400)], small.port, workers=6)
    assert not report.wrong
    answered = {name for name in report.outcomes if name.isdigit()}
    assert {"200", "400", "403", "404", "405", "431", "501", "505"} <= answered
    assert small.get("/health")[0] == 200
    assert "Traceback" not in small.log
    # The same seed makes the same requests.
    first, again = (script["Maker"](5, "m") for _ in range(2))
    assert [first.shot() for _ in range(50)] == [again.shot() for _ in range(50)]
