"""Find the folder that a user names: a path, a ready model, or a repository on a hub.

The files of a loaded folder may be mapped still: whether they were written to is seen here, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror_rt.bundle.hub import Repository, is_hub_name, refuse_revision
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.onnx_files import download_files
from mirror_rt.bundle.ready_models import local_folder, ready_names
from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import files_under
from mirror_rt.io.file_states import FileState, file_state

FileStates = Mapping[Path, FileState]


def resolve_bundle(
    path_or_name: str | Path,
    *,
    revision: str | None,
    offline: bool,
    variants: Sequence[str | None] | None = None,
    weights: bool = False,
    hashed: bool = True,
    cache: Path | None = None,
) -> Path:
    """Return the folder of a bundle, or of plain ONNX files, that is given by path or by name.

    A name is that of a ready model (`mirror-rt models`), or owner/name on a model hub; a folder
    comes before a name. `variants` are the graphs to download (None in the list is the default
    one); None for all. With `weights`, those in safetensors come before graphs. Ready models are
    `hashed`, or to be compared while they are loaded. With `offline`, it looks in the caches alone,
    whose place `cache` takes if it is given.
    """
    name = str(path_or_name)
    repository = Repository(name, revision, offline, cache=cache)
    if (found := local_folder(repository, hashed=hashed)) is not None:
        return found
    if not is_hub_name(name):
        refuse_revision(Path(name), revision)
        raise BundleError(
            f"{name}: no such folder, and no ready model of that name: there are "
            f"{ready_names()}. mirror-rt models lists the names that load, "
            "OWNER/NAME is one on a hub, and mirror-rt export MODEL --out BUNDLE makes a bundle"
        )
    top = repository.download([Layout.manifest])
    if (top / Layout.manifest).is_file():
        return repository.download_graphs(top, variants)
    return download_files(repository.at(top), variants, weights=weights)


def name_of(path: str | Path) -> str:
    """Return the last part of a path as it was given: where a link leads may change."""
    return Path(os.path.abspath(path)).name  # noqa: PTH100 - resolve() would follow links


def file_states(folder: Path) -> FileStates:
    """Return the state of each graph and file of weights in a folder, for `written_in_place`.

    The other files are read at load and closed; the inode of one that is replaced may be given to
    its successor, which would look as if it had been written to.
    """
    found = {path: file_state(path) for path in files_under(folder) if path.parent.name == "onnx"}
    return {path: state for path, state in found.items() if state is not None}


def written_in_place(states: FileStates) -> list[Path]:
    """Return the files that were written to since their states were taken.

    Whoever has such a file open or mapped reads the new content, or gets SIGBUS beyond its new end.
    A file that was renamed to its place, or removed, leaves the old one to those who have it.
    """
    found = []
    for path, (*file, size, written, _) in states.items():
        now = file_state(path)
        if now is not None and [*now[:2]] == file and now[2:4] != (size, written):
            found.append(path)
    return found
