from __future__ import annotations

import pytest

from dgpp.serve.served import ServedModel


@pytest.fixture(scope="session")
def model() -> ServedModel:
    return ServedModel("org/name", vocab_size=512, position_ceiling=4096, kv_pool_tokens=8192)
