"""Serve a script that thinks, says a sentence and calls a tool, until stdin ends.

usage: python scripts/clients/serve_calling.py; prints BASE and MODEL
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from serving import TINY, Starter  # noqa: E402

from dgpp.text.tokenizer import Tokenizer  # noqa: E402
from tests.e2e.test_anthropic_client import TEMPLATE, TEXT  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        shutil.copytree(TINY, model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        tokenizer = Tokenizer.load(model)
        ids = [*tokenizer.encode(TEXT), min(tokenizer.stop_ids)]
        starter = Starter(folder)
        try:
            server = starter(script=[{"ids": ids, "per_step": [1, 5, 2]}], model=str(model))
            print(server.base, server.model(), flush=True)
            sys.stdin.read()
        finally:
            starter.close()


if __name__ == "__main__":
    main()
