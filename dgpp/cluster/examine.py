"""Whether this node is fit to run a rank: each thing that was looked at, and what mends it."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dgpp.checkpoint.demo import DEMO_MODEL
from dgpp.checkpoint.hub import check_name
from dgpp.checkpoint.json_file import read_json
from dgpp.checkpoint.model_files import find_model
from dgpp.cluster.errors import RecordError
from dgpp.cluster.messages import Examine, Finding
from dgpp.cluster.record import State, read_record, state_of
from dgpp.config.resolve import SITE_DEFAULTS
from dgpp.engine.backends import choose_backend, unused
from dgpp.errors import ConfigError, DgppError, FetchError
from dgpp.net.listening import Listen, cannot_listen, obstacle
from dgpp.net.paths import path_of
from dgpp.net.roce import chosen
from dgpp.net.verbs.errors import LibraryError
from dgpp.net.verbs.frames import geometry_of
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.packages import load
from kernels_numba.gpu.device import Device

_UNLIMITED = "memlock unlimited in /etc/security/limits.d, then log in anew"
_CAP_IPC_LOCK = 14
LEAST_FREE = 1 << 30
"""Bytes that logs and staged files may need."""


def examine(request: Examine) -> Iterator[Finding]:
    """All findings, in the order in which an operator would look."""
    for folder in dict.fromkeys((request.place.logs, request.place.stage)):
        yield _folder(folder)
    yield _model(request)
    yield from _backend(request)
    yield _locked_memory()
    yield from _ports(request)
    if request.rdma:
        yield from _rdma(request)


def _folder(folder: Path) -> Finding:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".probe{os.getpid()}"
        try:
            probe.write_bytes(b"x")
        finally:
            # A full disk lets an empty file be made.
            probe.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = "name a folder that can be written: DGPP_LOG_DIR, DGPP_STAGE_DIR"
        return Finding("error", f"{folder}: {error.strerror}", remedy)
    if free < LEAST_FREE:
        return Finding("error", f"{folder}: {free >> 20} MiB are free", "make room for 1 GiB")
    return Finding("ok", f"{folder} can be written, {free >> 30} GiB are free")


def _model(request: Examine) -> Finding:
    model = request.model
    if model == DEMO_MODEL:
        return Finding("ok", "the demo model is fetched where it is absent")
    try:
        if request.hub:
            os.environ["HF_HUB_CACHE"] = request.hub
        files = find_model(model, weights=request.weights)
    except DgppError as error:
        return Finding("error", str(error), _mended(model, request.rank))
    return Finding("ok", f"{model} is at {files.directory}")


def _mended(model: str, rank: int) -> str:
    """How `rank` comes to have `model`: by what `dgpp fetch` takes, where it does."""
    named = "name as model its ORG/NAME or the folder that it is in"
    try:
        check_name(model)
    except FetchError:
        if Path(model).expanduser().is_file() or not model.startswith(("/", "~", ".")):
            return named
        if rank:
            return f"dgpp fetch {shlex.quote(model)} on rank 0's machine brings that folder there"
        return f"copy the model there, or {named}"
    return f"dgpp fetch {model}"


def _backend(request: Examine) -> Iterator[Finding]:
    found = {gpu: _computes(request, gpu) for gpu in request.gpus}
    # What is wrong with all of them is said once.
    yield from dict.fromkeys(finding for finding, _ in found.values())
    chosen = {backend for _, backend in found.values()} - {""}
    if chosen == {"cpu"} and (said := unused("cpu", "engine.devices", request.told)):
        yield Finding("warning", said, "leave it out, or engine.backend cuda")
    if request.world > 1:
        for backend in sorted(chosen):
            try:
                path_of(request.collective, backend, apart=request.apart)
            except ConfigError as error:
                yield Finding("error", str(error))


def _computes(request: Examine, gpu: int) -> tuple[Finding, str]:
    """What there is to say of a rank whose GPU would be `gpu`, and its backend, "" for none."""
    wanted = request.backend
    if wanted == "cuda" and (missed := _lacks(request)):
        return _uncomputed(missed), "cuda"
    try:
        choice = choose_backend(wanted, gpu, partial(_lacks, request))
    except DgppError as error:
        return Finding("error", str(error)), ""
    found, device = choice.backend, choice.device
    if choice.why:
        return Finding("warning", choice.said, "engine.backend cpu says that this is meant"), found
    if device is None:
        return Finding("ok", f"engine.backend {wanted} is {found}"), found
    if missed := _lacks(request, device):
        return _uncomputed(missed), found
    where = f"device {device.index}, {device.name}"
    return Finding("ok", f"engine.backend {wanted} is {found}: {where}"), found


def _uncomputed(missed: tuple[str, ...]) -> Finding:
    return Finding("error", f"engine.backend: {missed[0]}", "set it to cpu")


def _lacks(request: Examine, device: Device | None = None) -> tuple[str, ...]:
    """Why GPUs like `device` do not compute the model; nothing where there is no model to ask of.
    None: whatever some device takes."""
    from dgpp.models.registry import family_of  # imports NumPy, for which others need not wait

    try:
        config = read_json(find_model(request.model, weights=False).config)
        return family_of(config).lacks(config, request.world, device)
    except DgppError:
        return ()


def _locked_memory() -> Finding:
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY:
        return Finding("ok", "memory can be locked")
    return Finding("warning", f"at most {hard >> 10} KiB of memory can be locked", _UNLIMITED)


def _ports(request: Examine) -> Iterator[Finding]:
    try:
        record = read_record(request.place.record(request.rank))
    except RecordError as error:
        yield Finding("error", str(error))
        return
    if record is not None and state_of(record) is State.RUNNING:
        yield Finding("ok", f"its rank runs (process {record.pid}), so its ports are taken")
    else:
        yield from map(_port, request.listens)


def _port(wanted: Listen) -> Finding:
    error = obstacle(wanted)
    if error is None:
        return Finding("ok", f"{wanted.key}: {wanted.host}:{wanted.port} is free")
    key = SITE_DEFAULTS.get(wanted.key, "")
    silent = f", or {key} in .env (`dgpp setup` has an option) where that is silent" if key else ""
    remedy = f"end who has it, or choose another: {wanted.key} of the deployment{silent}"
    if error.errno == errno.EADDRNOTAVAIL:
        remedy = "http.bind_host is no address of this node; 0.0.0.0 is all of them"
    return Finding("error", cannot_listen(wanted, error), remedy)


def _rdma(request: Examine) -> Iterator[Finding]:
    try:
        library = load()
    except LibraryError as error:
        yield Finding("error", str(error))
    else:
        yield Finding("ok", f"{library.name} loads")
    try:
        lanes = chosen(request.devices, request.gids)
    except ConfigError as error:
        yield Finding("error", str(error), "see docs/networking.md")
        return
    for place, lane in enumerate(lanes):
        gid = lane.gid(request.gids[place] if place < len(request.gids) else -1)
        yield Finding("ok", f"{lane.name} is {lane.state} at {gid.host}, GID {gid.index}")
    # "auto" may find a GPU.
    geometry = geometry_of("cpu" if request.backend == "cpu" else "cuda")
    yield _registered_memory(Layout(geometry, len(lanes), request.world).bytes)


def _registered_memory(size: int) -> Finding:
    """Whether an adapter may be given the `size` bytes of the bus."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    what = f"the bus registers {-(-size >> 20)} MiB with its adapters"
    if hard == resource.RLIM_INFINITY or hard >= size or _may_lock_all():
        return Finding("ok", what)
    return Finding("error", f"{what}, {hard >> 10} KiB may be locked", _UNLIMITED)


def _may_lock_all() -> bool:
    """Whether this process has CAP_IPC_LOCK, so that no limit holds for it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False
