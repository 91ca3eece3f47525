"""Code that a server's own processes run before anything else: an emulated GPU, and faults that no
request can cause."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent


EMULATED = os.environ.get("DGPP_TEST_EMULATED") == "1"
EMULATE = "from emulator.backend import install\ninstall()\n"
_injected: list[str] = []


@contextmanager
def injected(code: str) -> Iterator[None]:
    """Servers started meanwhile run `code` first in each of their processes."""
    _injected.append(code)
    try:
        yield
    finally:
        _injected.remove(code)


def environment(folder: Path) -> dict[str, str]:
    """What a server's environment needs for that, as sitecustomize in `folder`. Where the tests run
    on an emulated GPU, so do the servers."""
    code = [EMULATE] * EMULATED + _injected
    if not code:
        return {}
    place = folder / f"site{len(list(folder.glob('site*')))}"
    place.mkdir()
    (place / "sitecustomize.py").write_text("\n".join(code))
    known = os.environ.get("PYTHONPATH", "")
    places = [str(place), str(TESTS) if EMULATED else "", known]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}


AFTER_IMPORT = '''
import importlib.abc, importlib.util, sys

{patch}

def _watch(patch):
    class Finder(importlib.abc.MetaPathFinder):
        """Runs `patch` once {module} is imported."""
        def find_spec(self, name, path, target=None):
            if name != "{module}":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module
            def exec_module(module):
                load(module)
                patch(module)
            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())

_watch(patch)
'''


def patching(module: str, patch: str) -> str:
    """Code for `injected`: `patch` defines patch(module), called once `module` is imported."""
    return AFTER_IMPORT.format(module=module, patch=patch)


SHORT_CHUNKS = patching(
    "dgpp.models.plan",
    """
def patch(module):
    module.UNIFIED_CHUNK_LIMIT = 64
""",
)
"""An emulated device's start reads a whole chunk of a prompt through the model, on one core."""
