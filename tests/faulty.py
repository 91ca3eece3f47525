"""Code that a server's own processes run before anything else: faults that no request can cause."""

from __future__ import annotations

import os
from pathlib import Path


def inject(folder: Path, code: str) -> dict[str, str]:
    """The environment in which every Python process runs `code` first (as sitecustomize)."""
    (folder / "sitecustomize.py").write_text(code)
    known = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{known}" if known else str(folder)}


AFTER_IMPORT = '''
import importlib.abc, importlib.util, sys

class _Finder(importlib.abc.MetaPathFinder):
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

sys.meta_path.insert(0, _Finder())

{patch}
'''


def patching(module: str, patch: str) -> str:
    """Code for `inject`: `patch` defines patch(module), called once `module` is imported."""
    return AFTER_IMPORT.format(module=module, patch=patch)
