"""The token ids that drafts are limited to (engine.draft_vocab), from a model's tokenizer.json.

    PYTHONPATH=. .venv/bin/python scripts/build_draft_vocab.py TOKENIZER.json OUT.npy --size 65536

Takes the added tokens, the alphabet, and the most frequent merges.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from dgpp.checkpoint.draft_vocab import choose_draft_vocab
from dgpp.errors import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path, help="the model's tokenizer.json")
    parser.add_argument("out", type=Path, help="the .npy file to write")
    parser.add_argument("--size", type=int, default=65_536, help="how many ids at most")
    given = parser.parse_args()
    try:
        ids = choose_draft_vocab(json.loads(given.tokenizer.read_text("utf-8")), given.size)
    except (OSError, ValueError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    with given.out.open("wb") as file:
        np.save(file, ids, allow_pickle=False)
    print(f"{len(ids)} of the tokenizer's ids: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
