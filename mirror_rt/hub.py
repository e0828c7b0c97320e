"""Where a name becomes a folder: a local path first, then a model hub or its local cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.errors import BundleError, MirrorError, require

__all__ = ["cache_folder", "download", "resolve_bundle"]


def cache_folder() -> Path:
    """Return $MIRROR_RT_CACHE, else $XDG_CACHE_HOME/mirror_rt, else ~/.cache/mirror_rt."""
    if own := os.environ.get("MIRROR_RT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror_rt"


def resolve_bundle(path_or_name: str | Path, *, revision: str | None, offline: bool) -> Path:
    """Folder of a bundle given by path or by hub name; BundleError where there is none."""
    path = Path(path_or_name)
    if path.exists() or not is_hub_name(str(path_or_name)):
        return path
    return download(str(path_or_name), revision=revision, offline=offline, error=BundleError)


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form owner/name of a model hub."""
    owner, slash, repository = name.partition("/")
    return bool(slash and owner and repository) and "/" not in repository and owner[0] not in ".~"


def download(
    name: str,
    *,
    revision: str | None,
    offline: bool,
    error: type[MirrorError],
    ignore: Sequence[str] = (),
) -> Path:
    """Download a model's files from the hub, or find them in its cache.

    Args:
        name: owner/name.
        revision: branch, tag or commit.
        offline: look in the cache alone.
        error: what to raise where the hub cannot be reached, or has no such name or revision.
        ignore: patterns of files to leave there.
    """
    hub = require("huggingface_hub", extra="cpu", purpose=f"loading {name!r} by name")
    try:
        return Path(
            hub.snapshot_download(
                name,
                revision=revision,
                local_files_only=offline,
                ignore_patterns=list(ignore),
            )
        )
    except (OSError, ValueError) as cause:  # every error of huggingface_hub is one of these
        where = "the local cache" if offline else "the model hub"
        first_line = str(cause).strip().splitlines()[0] if str(cause).strip() else repr(cause)
        raise error(
            f"{name!r} is neither a folder here nor found on {where}: {first_line}"
        ) from cause
