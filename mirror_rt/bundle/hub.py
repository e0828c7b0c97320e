"""Download from a model hub, or find what was downloaded in its local cache."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from mirror_rt.bundle.file_records import FileRecord
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleIntegrityError, ConfigError, MirrorError, require

_LOG_IN = "a token in HF_TOKEN, or hf auth login"


def cache_folder() -> Path:
    """Return $MIRROR_RT_CACHE, else $XDG_CACHE_HOME/mirror_rt, else ~/.cache/mirror_rt."""
    if own := os.environ.get("MIRROR_RT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror_rt"


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form owner/name of a model hub."""
    owner, slash, repository = name.partition("/")
    return bool(slash and owner and repository) and "/" not in repository and owner[0] not in ".~"


def refuse_revision(path: Path, revision: str | None) -> None:
    """Raise ConfigError if a revision is given with a local path, which has none."""
    if revision is not None:
        raise ConfigError(
            f"revision {revision!r} goes with a hub name, and {path} is a path here: leave it out"
        )


def download_graphs(
    name: str,
    folder: Path,
    *,
    offline: bool,
    error: type[MirrorError],
    variants: Sequence[str | None] | None = None,
    cache: Path | None = None,
) -> Path:
    """Download the files of a bundle whose manifest is in the snapshot `folder`, of its commit."""
    files = Manifest.read(folder, None).files_of(variants)
    if not offline:
        check_sizes(name, folder, files, error=error)
    return download(
        name,
        revision=folder.name,
        offline=offline,
        error=error,
        cache=cache,
        allow=[Layout.manifest, Layout.card, *map(glob.escape, files)],
    )


def check_sizes(
    name: str, folder: Path, files: Mapping[str, FileRecord], *, error: type[MirrorError]
) -> None:
    """Refuse files on the hub that are larger than a manifest says, before they are downloaded.

    `folder` is the snapshot of the commit; what it has already is compared when it is loaded.
    """
    if all((folder / file).exists() for file in files):
        return
    hub = hub_library(f"loading {name!r} by name")
    with hub_errors(name, error=error):
        for entry in hub.HfApi().list_repo_tree(name, revision=folder.name, recursive=True):
            record, size = files.get(entry.path), getattr(entry, "size", 0)
            if record is not None and size > record.bytes:
                raise BundleIntegrityError(
                    f"{name} at commit {folder.name[:12]} is damaged, nothing was downloaded: "
                    f"{entry.path} has {size:,} bytes, and its manifest says {record.bytes:,}"
                )


def download(
    name: str,
    *,
    revision: str | None,
    offline: bool,
    error: type[MirrorError],
    allow: Iterable[str] | None = None,
    ignore: Sequence[str] = (),
    cache: Path | None = None,
) -> Path:
    """Download the files of `name` (owner/name) from the hub, or find them in its cache.

    Return the folder of the snapshot in the cache; its name is the commit. `allow` and `ignore` are
    patterns of files; None allows all. If the hub cannot be reached, or has no such name or
    revision (branch, tag or commit), an `error` is raised. `cache` stands for the hub's own.
    """
    hub = hub_library(f"loading {name!r} by name")
    with hub_errors(name, revision=revision, offline=offline, error=error):
        return Path(
            hub.snapshot_download(
                name,
                revision=revision,
                local_files_only=offline,
                cache_dir=cache,
                allow_patterns=None if allow is None else list(allow),
                ignore_patterns=list(ignore),
            )
        )


def cached(name: str) -> Path:
    """Return the folder in which the hub's cache keeps the files of a repository."""
    constants = require("huggingface_hub.constants", extra="hub", purpose="using a model hub")
    return Path(constants.HF_HUB_CACHE) / "--".join(["models", *name.split("/")])


def hub_library(purpose: str) -> ModuleType:
    """Import huggingface_hub, or raise an error that says which extra installs it."""
    return require("huggingface_hub", extra="hub", purpose=purpose)


@contextlib.contextmanager
def hub_errors(
    name: str, *, error: type[MirrorError], revision: str | None = None, offline: bool = False
) -> Iterator[None]:
    """Turn errors of huggingface_hub about the repository `name` into an `error` of one line."""
    errors = require("huggingface_hub.errors", extra="hub", purpose="using a model hub")
    try:
        yield
    except MirrorError:
        raise
    # These are errors of the network, of huggingface_hub itself, and of its transfers.
    except (errors.HTTPError, OSError, ValueError, RuntimeError) as cause:
        if isinstance(cause, OSError) and cause.errno is not None:
            raise  # an error of this machine, such as a full disk or a missing permission
        raise error(_explain(errors, cause, name, revision, offline)) from cause


def _explain(
    errors: ModuleType, cause: Exception, name: str, revision: str | None, offline: bool
) -> str:
    constants = require("huggingface_hub.constants", extra="hub", purpose="using a model hub")
    endpoint, offline = constants.ENDPOINT, offline or constants.HF_HUB_OFFLINE
    if isinstance(cause, RuntimeError) and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__  # the error of the one upload that failed
    status = getattr(getattr(cause, "response", None), "status_code", None)
    said = getattr(cause, "server_message", None) or str(cause.__cause__ or cause)
    reason = next(iter(said.strip().splitlines()), repr(cause))
    if isinstance(cause, errors.HFValidationError):
        return f"{name!r} is neither a folder here nor a name on a hub: {reason}"
    if isinstance(cause, errors.GatedRepoError):
        return f"{name} is gated: accept its terms at {endpoint}/{name}, then give {_LOG_IN}"
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision!r} on {endpoint}: name a branch, tag or commit"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"{name!r} is neither a folder here nor found on {endpoint} (a private repository "
            f"needs {_LOG_IN})"
        )
    if isinstance(cause, errors.LocalEntryNotFoundError) and offline:
        return f"{name!r} is neither a folder here nor found whole in the local cache: {reason}"
    if status == 401:
        return f"{endpoint} refuses the token: give another one ({_LOG_IN})"
    if status == 403:
        return f"the token in use may not do this with {name} on {endpoint}: {reason}"
    if status is None and isinstance(cause, (errors.HTTPError, OSError)):
        return (
            f"{endpoint} cannot be reached, or broke off ({reason}): run it again, files that "
            "were transferred whole are kept"
        )
    return f"{name} on {endpoint}: {reason}" + (f" (status {status})" if status else "")
