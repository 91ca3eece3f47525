"""`python -m kernels_numba.gpu.probe [INDEX]`: the device as JSON, found in a process of its own.

A CUDA context takes hundreds of megabytes and does not survive a fork, so whoever only wants to
know asks here.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict

from kernels_numba.gpu.device import REINSTALL, Device, open_device, require_installed
from kernels_numba.gpu.errors import CudaError

TIMEOUT_S = 60


def ask_device(index: int = 0) -> Device:
    """What `open_device` finds in another process. Raises CudaError as it does."""
    require_installed()
    command = [sys.executable, "-m", "kernels_numba.gpu.probe", str(index)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        message = f"the CUDA driver did not answer within {TIMEOUT_S} s"
        raise CudaError(f"{message}: see nvidia-smi and dmesg; a reboot may mend it") from error
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else _ended(ended.returncode)
        again = f"`{shlex.join(command)}` says more"
        raise CudaError(f"the CUDA probe failed: {reason}; {again}; {REINSTALL}") from error
    if "error" in answer:
        raise CudaError(answer["error"])
    answer["architecture"] = tuple(answer["architecture"])
    return Device(**answer)


def _ended(status: int) -> str:
    """An exit status of subprocess in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def main() -> None:
    index = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    try:
        answer = asdict(open_device(index))
    except CudaError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
