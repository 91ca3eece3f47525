"""A model to every node that is to serve it: downloaded once, proved, and synced to the others."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from dgpp.checkpoint import hub
from dgpp.checkpoint.hashes import cache_directory
from dgpp.checkpoint.hub_cache import (
    COMMIT,
    MAIN,
    blob,
    name_commit,
    named_commit,
    snapshot,
)
from dgpp.checkpoint.own_copy import WEIGHTS, OwnCopy, take_stock
from dgpp.checkpoint.receive import Copy, CopyFile, Depth
from dgpp.checkpoint.resolve import models_directory
from dgpp.checkpoint.served_files import CONFIG
from dgpp.cluster.errors import LockedError
from dgpp.cluster.sync import (
    LEAST_FREE,
    Order,
    Peer,
    Tell,
    each,
    held_by,
    in_gb,
    require_room,
    sync,
    whole_on,
)
from dgpp.config.engine_settings import EngineSettings
from dgpp.errors import CheckpointError, FetchError


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for `model`: ORG/NAME at `revision`, or a folder.

    `download` from the hub, `deliver` to the peers; without `write` everything is looked at, every
    byte, and left as it is. `anew`: no hash of before is trusted. `activate`: servers take this
    revision, where they take another one now. Files whose names match `may_lack` are not asked for.
    """

    model: str
    revision: str = ""
    activate: bool = False
    download: bool = True
    deliver: bool = True
    write: bool = True
    anew: bool = False
    may_lack: tuple[str, ...] = ()


def fetch(wanted: Fetch, cache: Path, peers: Sequence[Peer], tell: Tell) -> Path:
    """The folder of the model on this machine, when it is whole here and on all `peers`.

    `cache` is the Hugging Face cache of this machine. Raises FetchError, CheckpointError and
    ClusterError, each with its remedy; a model that was served before still is.
    """
    peers = peers if wanted.deliver else ()
    folder = _folder(wanted.model)
    if folder is None:
        hub.check_name(wanted.model, wanted.revision or MAIN)
    elif wanted.revision or wanted.activate:
        raise FetchError(f"--revision, --activate: {folder} is a folder and has one state")
    with _alone(wanted.model):
        if folder is None:
            return _from_hub(wanted, cache, peers, tell)
        own = take_stock(folder, (), tell.progress, anew=wanted.anew or not wanted.write)
        _require_whole(wanted, folder, own)
        copy = Copy(_as_peers_name_it(wanted.model, folder), "", "", own.files)
        _deliver(wanted, Order(copy, folder, False, _depth(wanted)), peers, tell)
        return folder


def _folder(model: str) -> Path | None:
    """Where `model` is one of our own folders, or any: a server takes it before the hub's cache."""
    for folder in (Path(model).expanduser(), models_directory(os.environ) / model):
        if folder.is_dir():
            return folder
    if Path(model).expanduser().is_file():
        raise FetchError(f"MODEL: {model} is a file; a model is a folder, or ORG/NAME on the hub")
    return None


def _as_peers_name_it(model: str, folder: Path) -> str:
    """The same folder below their own home directory, where it is below this one's."""
    if model.startswith("~/"):
        return model
    absolute, home = folder.absolute(), Path.home()
    return f"~/{absolute.relative_to(home)}" if absolute.is_relative_to(home) else str(absolute)


def _depth(wanted: Fetch) -> Depth:
    return Depth.ANEW if wanted.anew or not wanted.write else Depth.KNOWN


def _from_hub(wanted: Fetch, cache: Path, peers: Sequence[Peer], tell: Tell) -> Path:
    model = wanted.model
    asked = wanted.download and wanted.write and not hub.is_offline()
    listing = hub.list_served(model, wanted.revision or MAIN) if asked else None
    commit = listing.commit if listing else _known_commit(wanted, cache)
    main = _is_main(wanted, cache, commit)
    if listing:
        _require_room(listing, cache, peers)
        own = _download(listing, wanted, cache, tell)
    else:
        own = _stock(wanted, cache, commit, (), tell)
    folder = snapshot(model, cache, commit)
    _require_whole(wanted, folder, own)
    if main and wanted.write and not named_commit(model, cache):
        name_commit(model, cache, commit)
    if not main:
        tell.say(
            f"{model}: servers take {named_commit(model, cache)}; this is {commit}: --activate "
            f"makes them take it, or name its folder as the model"
        )
    order = Order(Copy(model, commit, "", own.files), folder, main, _depth(wanted))
    _deliver(wanted, order, peers, tell)
    if main and wanted.write:
        # Last, so that no rank takes another revision while a peer cannot.
        name_commit(model, cache, commit)
    return folder


def _known_commit(wanted: Fetch, cache: Path) -> str:
    """The commit of the revision as this machine's cache knows it. Raises FetchError."""
    revision = wanted.revision or MAIN
    known = revision if COMMIT.fullmatch(revision) else ""
    commit = known or named_commit(wanted.model, cache, revision)
    if not commit or not snapshot(wanted.model, cache, commit).is_dir():
        why = "HF_HUB_OFFLINE is set" if hub.is_offline() else "nothing is downloaded"
        raise FetchError(
            f"{wanted.model}: {cache} has no whole {revision} of it, and {why}: run `dgpp fetch "
            f"{wanted.model}` where the hub is reached"
        )
    return commit


def _is_main(wanted: Fetch, cache: Path, commit: str) -> bool:
    """Whether servers are to take `commit`: the first one, the newest, or one that is activated."""
    known = named_commit(wanted.model, cache)
    follows = not wanted.revision or wanted.revision == MAIN
    return wanted.activate or follows or known in ("", commit)


def _require_room(listing: hub.Listing, cache: Path, peers: Sequence[Peer]) -> None:
    """Before a byte is fetched: here, and on every peer, which must be reached as well."""
    cache.mkdir(parents=True, exist_ok=True)
    need, free = hub.bytes_missing(listing, cache), shutil.disk_usage(cache).free
    if need and free < need + LEAST_FREE:
        raise FetchError(
            f"{listing.model}: {in_gb(need)} are to be written at {cache}, where {in_gb(free)} are "
            f"free and {in_gb(LEAST_FREE)} stay so: make room, or name another with HF_HUB_CACHE"
        )
    files = tuple(CopyFile(f.name, f.size, f.sha256, f.blob) for f in listing.files)
    copy = Copy(listing.model, listing.commit, "", files)

    def check(peer: Peer) -> None:
        theirs = msgspec.structs.replace(copy, hub=peer.hub)
        require_room(peer, theirs, held_by(peer, theirs, Depth.SIZE))

    each(peers, check)


def _download(listing: hub.Listing, wanted: Fetch, cache: Path, tell: Tell) -> OwnCopy:
    names = [file.name for file in listing.files]
    need = hub.bytes_missing(listing, cache)
    if need:
        tell.say(f"{listing.model}: fetching {in_gb(need)} of {len(names)} files")
    hub.download(listing, cache)
    own = _stock(wanted, cache, listing.commit, names, tell)
    if own.damaged:
        tell.say(f"{listing.model}: damaged and fetched again: {', '.join(own.damaged)}")
        for file in listing.files:
            if file.name in own.damaged:
                blob(listing.model, cache, file.blob).unlink()
        hub.download(listing, cache, own.damaged)
        own = _stock(wanted, cache, listing.commit, names, tell)
    return own


def _stock(wanted: Fetch, cache: Path, commit: str, names: Sequence[str], tell: Tell) -> OwnCopy:
    folder = snapshot(wanted.model, cache, commit)
    return take_stock(folder, names, tell.progress, anew=wanted.anew or not wanted.write)


def _require_whole(wanted: Fetch, folder: Path, own: OwnCopy) -> None:
    """Raises CheckpointError naming what is missing or damaged."""
    spared = [name for name in own.missing if any(fnmatch(name, p) for p in wanted.may_lack)]
    said = [f"{name} is missing" for name in own.missing if name not in spared]
    said += [f"{name} is damaged" for name in own.damaged]
    if not said:
        return
    if _folder(wanted.model) is None:
        raise CheckpointError(f"{folder}: {', '.join(said)}; `dgpp fetch {wanted.model}` mends it")
    # Nobody knows where it came from.
    raise CheckpointError(f"{folder}: {', '.join(said)}; copy the whole model there once more")


def _deliver(wanted: Fetch, order: Order, peers: Sequence[Peer], tell: Tell) -> None:
    size = sum(file.size for file in order.copy.files)
    whole = f"{order.copy.model}: {len(order.copy.files)} files, {in_gb(size)}, whole"
    if wanted.write:
        tell.say(f"{whole} at {order.directory}")
        sync(peers, order, tell)
        return
    wrong = [line for lines in each(peers, lambda peer: whole_on(peer, order)) for line in lines]
    if wrong:
        raise CheckpointError(f"{'; '.join(wrong)}; `dgpp fetch {wanted.model}` mends it")
    tell.say(f"{whole} on {1 + len(peers)} node{'s' if peers else ''}, every byte read")


@contextmanager
def _alone(model: str) -> Iterator[None]:
    """One command at a time fetches a model on this machine. Raises LockedError."""
    name = hashlib.sha256(model.encode()).hexdigest()[:16]
    file = cache_directory(os.environ) / "fetch" / f"{name}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedError(
                f"{model}: another `dgpp fetch` of it is under way here; wait for it, or end it"
            ) from None
        yield


def unread(engine: EngineSettings) -> tuple[str, ...]:
    """What of a model's files its server does not read, though they make a checkpoint whole."""
    if engine.backend == "scripted":
        return CONFIG, WEIGHTS
    return (WEIGHTS,) if engine.load == "dummy" else ()


def models_of(model: str, *others: str) -> Iterator[str]:
    """The models that a deployment needs, each once."""
    yield from dict.fromkeys(name for name in (model, *others) if name)
