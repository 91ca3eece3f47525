"""A checkpoint of this machine on other nodes: what they lack is sent, proved, put in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import msgspec

from dgpp.checkpoint.own_copy import Progress
from dgpp.checkpoint.receive import Copy, CopyState, Depth, Held
from dgpp.cluster.errors import ClusterError, DiskFullError, TransferError
from dgpp.cluster.messages import Adopt, Answer, Drop, Hold
from dgpp.cluster.node import ANSWER_S, RemoteNode
from dgpp.cluster.transfer import NO_ROOM, Parcel, end_all, send

LEAST_FREE = 1 << 30
"""Bytes of a disk that a model never takes."""
HASHED_PER_S = 100e6
"""Bytes that the slowest disk gives in a second: how long a node may take to hash its files."""
ENDED_S = 0.1
"""How soon a transfer is ended again that began while all were being ended."""
TRIES = 2
"""How often a file is sent that arrives damaged."""

Say = Callable[[str], object]
Result = TypeVar("Result")


class Tell(msgspec.Struct, frozen=True):
    """Who hears what goes on: lines, and bytes of a stage."""

    say: Say
    progress: Progress


class Peer(msgspec.Struct, frozen=True):
    """A node that is to have a model, and the Hugging Face cache there (empty: its own)."""

    node: RemoteNode
    hub: str


class Order(msgspec.Struct, frozen=True):
    """`copy` as peers are to have it, from the files in `directory`; `main`: servers take it."""

    copy: Copy
    directory: Path
    main: bool
    depth: Depth

    def at(self, peer: Peer) -> Copy:
        return msgspec.structs.replace(self.copy, hub=peer.hub)


def held_by(peer: Peer, copy: Copy, depth: Depth, *, make_room: bool = False) -> Held:
    """What `peer` has of `copy`; `make_room` makes the folder to send to. Raises ClusterError."""
    answer = _ask(peer, copy, Hold(copy, depth, open=make_room))
    assert answer.held is not None
    return answer.held


def _ask(peer: Peer, copy: Copy, request: Hold | Adopt | Drop) -> Answer:
    total = sum(file.size for file in copy.files)
    return peer.node.ask(request, ANSWER_S + total / HASHED_PER_S)


def bytes_lacking(copy: Copy, held: Held) -> int:
    """Bytes that must be sent and written, less what is staged from before."""
    lacking = (CopyState.ABSENT, CopyState.DAMAGED)
    wanted = sum(file.size for file in copy.files if held.states[file.name] in lacking)
    here = sum(f.size for f in copy.files if held.states[f.name] is CopyState.HERE)
    return max(0, wanted - max(0, held.staged - here))


def require_room(peer: Peer, copy: Copy, held: Held) -> None:
    """Raises DiskFullError where the node's disk cannot take what it lacks of `copy`."""
    need = bytes_lacking(copy, held)
    if need and held.free < need + LEAST_FREE:
        raise DiskFullError(
            f"{peer.node.name}: {in_gb(need)} are to be written at {held.staging}, where "
            f"{in_gb(held.free)} are free and {in_gb(LEAST_FREE)} stay so: {NO_ROOM}"
        )


def in_gb(count: int) -> str:
    """`count` bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e3:.1f} kB"


def sync(peers: Sequence[Peer], order: Order, tell: Tell) -> None:
    """Bring every peer to have the whole copy, all at once.

    What fails on one does not stop the others, and servers take the copy when all have it. Raises
    the ClusterError of each that failed.
    """
    each(peers, lambda peer: _sync(peer, order, tell))
    if order.main:
        each(peers, lambda peer: _ask(peer, order.at(peer), Adopt(order.at(peer), main=True)))


def each(peers: Sequence[Peer], act: Callable[[Peer], Result]) -> list[Result]:
    """`act` on all peers at once. Raises ClusterError: what was wrong, of every peer."""
    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        waiting = [pool.submit(act, peer) for peer in peers]
        try:
            wait(waiting)
        except BaseException:
            # An interruption need not wait until hundreds of gigabytes have gone, nor for what
            # another thread was about to send.
            while wait(waiting, ENDED_S).not_done:
                end_all()
                for peer in peers:
                    peer.node.close()
            raise
    wrong = [error for done in waiting if (error := done.exception()) is not None]
    for error in wrong:
        if not isinstance(error, ClusterError):
            raise error
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise ClusterError("; ".join(str(error) for error in wrong))
    return [done.result() for done in waiting]


def _sync(peer: Peer, order: Order, tell: Tell) -> None:
    copy, name, say = order.at(peer), peer.node.name, tell.say
    held = held_by(peer, copy, order.depth, make_room=True)
    for file, state in held.states.items():
        if state is CopyState.DAMAGED:
            say(f"{name}: {file} is damaged there and is sent again")
    require_room(peer, copy, held)
    lacking = [
        file
        for file, state in held.states.items()
        if state in (CopyState.ABSENT, CopyState.DAMAGED)
    ]
    for _ in range(TRIES):
        if lacking:
            _send(peer, copy, order, lacking, held, tell)
        lacking = list(_ask(peer, copy, Adopt(copy, main=False)).wrong)
        if not lacking:
            say(f"{name}: has {copy.model} whole")
            return
        say(f"{name}: {', '.join(lacking)} arrived damaged")
    raise TransferError(
        f"{name}: {', '.join(lacking)} arrived damaged {TRIES} times: test that node's memory, "
        "disk and network"
    )


def _send(
    peer: Peer, copy: Copy, order: Order, names: Sequence[str], held: Held, tell: Tell
) -> None:
    size = sum(file.size for file in copy.files if file.name in names)
    tell.say(f"{peer.node.name}: sending {len(names)} files, {in_gb(size)}")
    parcel = Parcel(order.directory, tuple(names), held.staging)
    try:
        send(
            peer.node,
            parcel,
            held.programs,
            lambda count: tell.progress(peer.node.host, min(count, size), size),
        )
    except DiskFullError:
        _ask(peer, copy, Drop(copy))
        raise


def whole_on(peer: Peer, order: Order) -> tuple[str, ...]:
    """What is wrong with the copy of `peer`, in words; empty where nothing is. Writes nothing."""
    copy = order.at(peer)
    held = held_by(peer, copy, order.depth)
    words = {
        CopyState.ABSENT: "is missing",
        CopyState.HERE: "is not in its place",
        CopyState.DAMAGED: "is damaged",
    }
    wrong = [
        f"{peer.node.name}: {name} {words[state]}"
        for name, state in held.states.items()
        if state in words
    ]
    if order.main and copy.commit != held.main and not wrong:
        wrong.append(f"{peer.node.name}: refs/main names {held.main or 'nothing'} there")
    return tuple(wrong)
