"""What a server imports: not more than it needs, and without looking for garbage meanwhile."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from dgpp.imports import uncollected


@pytest.mark.parametrize("fails", [False, True])
def test_collection_goes_on_after_imports(fails):
    def imports():
        with uncollected():
            assert not gc.isenabled()
            if fails:
                raise ImportError

    if fails:
        with pytest.raises(ImportError):
            imports()
    else:
        imports()
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("module", "never"),
    [
        # A process for each actor: what one does not use, it neither waits for nor holds.
        ("actors.http.actor", ["jinja2", "numba", "tokenizers", "dgpp.models"]),
        ("actors.scheduler", ["jinja2", "numba", "aiohttp", "tokenizers", "dgpp.models"]),
        ("actors.sampler", ["numba", "aiohttp", "dgpp.models"]),
        ("actors.engine", ["jinja2", "numba", "aiohttp", "cupy"]),
        ("actors.tokenizer", ["numba", "aiohttp", "dgpp.models"]),
        # Rank 0's own process plans any family, and computes with none.
        ("actors.serve", ["numba", "aiohttp", "cupy", "dgpp.models.decoder"]),
    ],
)
def test_no_process_imports_what_others_need(module, never):
    code = f"import {module}, json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    found = set(json.loads(done.stdout))
    assert module in found
    assert not found & set(never)
