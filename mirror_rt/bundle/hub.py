"""Download from a model hub, or find earlier downloads in its local cache."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from mirror_rt.bundle.file_records import FileRecord
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError, BundleIntegrityError, ConfigError, MirrorError, require

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


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository on a model hub, and the way to download from it.

    Attributes:
        name: owner/name.
        revision: branch, tag or commit; None for the default branch.
        offline: find the files in the cache alone.
        error: raised where the hub cannot be reached, or has no such name or revision.
        cache: folder in the place of the hub's own cache.
    """

    name: str
    revision: str | None = None
    offline: bool = False
    error: type[MirrorError] = BundleError
    cache: Path | None = None

    def download(self, allow: Iterable[str] | None = None, ignore: Sequence[str] = ()) -> Path:
        """Download files, or find them in the cache; return the folder, named as its commit.

        `allow` and `ignore` are patterns of files; None allows all.
        """
        hub = hub_library(f"loading {self.name!r} by name")
        with self.errors():
            return Path(
                hub.snapshot_download(
                    self.name,
                    revision=self.revision,
                    local_files_only=self.offline,
                    cache_dir=self.cache,
                    allow_patterns=None if allow is None else list(allow),
                    ignore_patterns=list(ignore),
                )
            )

    def at(self, snapshot: Path) -> Repository:
        """Return the same at the commit of a snapshot, even if a new one was pushed meanwhile."""
        return replace(self, revision=snapshot.name)

    def download_graphs(self, folder: Path, variants: Sequence[str | None] | None) -> Path:
        """Download the files of a bundle whose manifest is in the snapshot `folder`."""
        files, own = Manifest.read(folder, None).files_of(variants), self.at(folder)
        own.check_sizes(folder, files)
        return own.download([Layout.manifest, Layout.card, *map(glob.escape, files)])

    def check_sizes(self, folder: Path, files: Mapping[str, FileRecord]) -> None:
        """Refuse files that are larger than a manifest says, before they are downloaded.

        Files that the snapshot `folder` has already are compared when they are loaded.
        """
        if self.offline or all((folder / file).exists() for file in files):
            return
        api = hub_library(f"loading {self.name!r} by name").HfApi()
        with self.errors():
            for entry in api.list_repo_tree(self.name, revision=self.revision, recursive=True):
                record, size = files.get(entry.path), getattr(entry, "size", 0)
                if record is not None and size > record.bytes:
                    raise BundleIntegrityError(
                        f"{self.name} at commit {folder.name[:12]} is damaged, nothing was "
                        f"downloaded: {entry.path} has {size:,} bytes, and its manifest says "
                        f"{record.bytes:,}"
                    )

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the errors of huggingface_hub into an `error` of one line."""
        errors = require("huggingface_hub.errors", extra="hub", purpose="using a model hub")
        try:
            yield
        except MirrorError:
            raise
        # These are errors of the network, of huggingface_hub itself, and of its transfers.
        except (errors.HTTPError, OSError, ValueError, RuntimeError) as cause:
            if isinstance(cause, OSError) and cause.errno is not None:
                raise  # an error of this machine, such as a full disk or a missing permission
            raise self.error(_explain(errors, cause, self)) from cause


def cached(name: str) -> Path:
    """Return the folder in which the hub's cache keeps the files of a repository."""
    constants = require("huggingface_hub.constants", extra="hub", purpose="using a model hub")
    return Path(constants.HF_HUB_CACHE) / "--".join(["models", *name.split("/")])


def hub_library(purpose: str) -> ModuleType:
    """Import huggingface_hub, or raise an error that says which extra installs it."""
    return require("huggingface_hub", extra="hub", purpose=purpose)


def _explain(errors: ModuleType, cause: Exception, repository: Repository) -> str:
    constants = require("huggingface_hub.constants", extra="hub", purpose="using a model hub")
    name, endpoint = repository.name, constants.ENDPOINT
    offline = repository.offline or constants.HF_HUB_OFFLINE
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
        said = f"{name} has no revision {repository.revision!r} on {endpoint}"
        return f"{said}: name a branch, tag or commit"
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
