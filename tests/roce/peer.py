"""A peer in a process of its own, to be killed: `python tests/roce/peer.py DEVICE GID_INDEX`.

Says where it is reached, is told where the other end is, receives one write and sleeps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1]))
from ends import open_end
from verbs_end import Told

if __name__ == "__main__":
    end = open_end(sys.argv[1], int(sys.argv[2]))
    end.receive(1)
    print(msgspec.json.encode(end.told()).decode(), flush=True)
    end.connect(msgspec.json.decode(sys.stdin.readline(), type=Told))
    print("connected", flush=True)
    print(end.wait().received, flush=True)
    time.sleep(600)
