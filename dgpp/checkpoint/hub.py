"""What the Hugging Face hub has of a model, and its download into the cache.

huggingface_hub does the talking: its token, endpoint, proxies and offline mode apply.
"""

from __future__ import annotations

import errno
import glob
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from dgpp.checkpoint.hub_cache import MAIN, is_revision, repository
from dgpp.checkpoint.resolve import HUB_NAME
from dgpp.checkpoint.served_files import holds_weights, served_files
from dgpp.errors import FetchError

ABANDONED_S = 3600
"""What nobody has written to for so long is no download any more."""


class HubFile(msgspec.Struct, frozen=True):
    """One file of a model: `sha256` where the hub keeps it as a large one, else empty; `blob` is
    its name in the cache."""

    name: str
    size: int
    sha256: str
    blob: str


class Listing(msgspec.Struct, frozen=True):
    """The files of `model` at `commit` that a served model reads, sorted by name."""

    model: str
    commit: str
    files: tuple[HubFile, ...]


def check_name(model: str, revision: str = MAIN) -> None:
    """Raises FetchError where `model` is not ORG/NAME, or `revision` cannot be one."""
    if not HUB_NAME.fullmatch(model) or ".." in model or "--" in model:
        raise FetchError(
            f"MODEL: {model!r} is no name of a model on the hub; expected ORG/NAME, `demo`, or a "
            "folder that is there"
        )
    if not is_revision(revision):
        raise FetchError(
            f"--revision: {revision!r} is none; expected a branch, a tag or a commit's 40 digits"
        )


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE says that the hub is not to be asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def list_served(model: str, revision: str = MAIN) -> Listing:
    """What the hub has of `model` at `revision`. Nothing of a file's content is fetched.

    Raises FetchError naming the remedy: no such model or revision, terms that were not accepted, a
    hub that is not reached, a repository without what is served.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    check_name(model, revision)
    api = HfApi()
    with _in_words(model, revision):
        commit = api.model_info(model, revision=revision).sha or ""
        # A gated repository lists its files for everybody and gives their bytes to few.
        api.auth_check(model)
        found = [
            entry
            for entry in api.list_repo_tree(model, revision=commit)
            if isinstance(entry, RepoFile)
        ]
    wanted = set(served_files(entry.path for entry in found))
    files = sorted(
        (
            HubFile(
                entry.path,
                entry.size,
                entry.lfs.sha256 if entry.lfs else "",
                entry.lfs.sha256 if entry.lfs else entry.blob_id,
            )
            for entry in found
            if entry.path in wanted
        ),
        key=lambda file: file.name,
    )
    if not holds_weights(wanted):
        there = ", ".join(sorted(entry.path for entry in found)[:8]) or "nothing"
        raise FetchError(
            f"{model}: no config.json with *.safetensors at {revision}, so it cannot be served; "
            f"there is {there}"
        )
    return Listing(model, commit, tuple(files))


def bytes_missing(listing: Listing, hub: Path) -> int:
    """Bytes that `download` would fetch: of the files that are not there whole."""
    blobs = repository(listing.model, hub) / "blobs"
    return sum(file.size for file in listing.files if not (blobs / file.blob).exists())


def download(listing: Listing, hub: Path, names: Sequence[str] | None = None) -> None:
    """Bring the listed files (or those of them in `names`) into the cache `hub`.

    Files that are there are not fetched again. No revision is named: that is for the caller, when
    all is proved. Raises FetchError.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    if names is None:
        names = [file.name for file in listing.files]
    with _in_words(listing.model, listing.commit):
        snapshot_download(
            listing.model,
            revision=listing.commit,
            cache_dir=hub,
            allow_patterns=[glob.escape(name) for name in names],
        )
    _clear_away(repository(listing.model, hub) / "blobs")


def _clear_away(blobs: Path) -> None:
    """Parts of files that a download left whose process was killed; no other goes on from them."""
    for part in blobs.glob("*.incomplete"):
        if time.time() - part.stat().st_mtime > ABANDONED_S:
            part.unlink(missing_ok=True)


@contextmanager
def _in_words(model: str, revision: str) -> Iterator[None]:
    """The errors of huggingface_hub, each with what to do about it."""
    from huggingface_hub import constants, errors

    # The root of its HTTP library's errors, which is another library in other releases.
    transport = cast("type[Exception]", errors.HfHubHTTPError.__bases__[0])
    end = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise FetchError(
            f"{model} is gated: accept its terms at {end}/{model}, then say who you are "
            "(HF_TOKEN=…, or `hf auth login`)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"{end} knows no model {model}: check its name; a private one needs HF_TOKEN=…"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(
            f"{model} has no revision {revision}; {end}/{model}/tree/main lists branches and tags"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise FetchError(f"{model}: HF_HUB_OFFLINE is set, so the hub is not asked") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "nothing"
        remedy = "HF_TOKEN=… says who you are" if status in (401, 403) else "try again later"
        raise FetchError(f"{model}: {end} answered {status}: {remedy}") from error
    except (OSError, RuntimeError, transport) as error:
        # Where a download breaks off, a RuntimeError is what hf-xet has for all that can go wrong.
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise FetchError(
                f"{model}: the disk is full: make room, or name another with HF_HUB_CACHE; what "
                "came is kept, the same command goes on from there"
            ) from error
        raise FetchError(
            f"{model}: {end} is not reached, or the download broke off ({_last_line(error)}); "
            "check the network, HTTPS_PROXY and HF_ENDPOINT; the same command goes on from there"
        ) from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
