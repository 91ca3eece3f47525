"""What kind of machine this node is, for whoever sets a site up."""

from __future__ import annotations

import os
import platform

from dgpp.checkpoint.receive import free_bytes, programs
from dgpp.checkpoint.resolve import hub_directory
from dgpp.cluster.messages import NodeFacts, Survey
from dgpp.net.roce import devices
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.probe import ask_device


def survey(request: Survey) -> NodeFacts:
    """Raises OSError."""
    hub = hub_directory({"HF_HUB_CACHE": request.hub} if request.hub else os.environ)
    try:
        gpu, has_gpu = ask_device(0).name, True
    except CudaError as error:
        gpu, has_gpu = str(error), False
    return NodeFacts(
        python=platform.python_version(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpu=gpu,
        has_gpu=has_gpu,
        hub=str(hub),
        free=free_bytes(hub),
        devices=tuple(devices()),
        programs=programs(),
    )
