"""Bodies made up from the document, right and wrong ones: the server answers as it states."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, seed, settings

schemathesis = pytest.importorskip("schemathesis")

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "negative_data_rejection"),
)
CLIENTS_OWN = ["2xx", "3xx", "4xx", "504"]
"""The statuses that a client brings about. It asks for a 504 with its `timeout_s`."""

MANY = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("right", "examples"),
    [
        (True, 2),
        (False, 5),
        pytest.param(True, 300, marks=MANY),
        pytest.param(False, 300, marks=MANY),
    ],
)
def test_no_body_that_can_be_made_up_is_the_servers_fault(small, right, examples):
    whole = json.loads(small.get("/openapi.json")[1])
    schema = schemathesis.openapi.from_dict(whole)
    schema.config.checks.not_a_server_error.expected_statuses = CLIENTS_OWN
    mode = schemathesis.GenerationMode.POSITIVE if right else schemathesis.GenerationMode.NEGATIVE
    checks = schemathesis.checks.load_all_checks() or schemathesis.checks.CHECKS.get_by_names(
        list(CHECKS)
    )
    asked = 0

    def one(operation):
        @seed(7)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def fuzz(case):
            nonlocal asked
            asked += 1
            answer = case.call(base_url=small.base, timeout=60)
            case.validate_response(answer, checks=checks)
            if answer.status_code == 504:
                assert case.body["timeout_s"] <= answer.elapsed

        fuzz()

    for found in schema.get_all_operations():
        operation = found.ok()
        if right or operation.method == "post":
            one(operation)
    assert asked > 10
    assert small.get("/health")[0] == 200
    assert "Traceback" not in small.log
