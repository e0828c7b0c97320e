"""From a folder to a model hub: verified first, then sent in one commit."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mirror_rt.bundle.hub import hub_errors, hub_library, is_hub_name
from mirror_rt.bundle.hub_content import read_bundles, visible_files
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.model_card import model_card, pack_card
from mirror_rt.errors import ConfigError, HubError

__all__ = ["Pushed", "push"]

# Of the hub or the owner, not of a former version: never removed.
_KEPT = (".gitattributes", "LICENSE*", "NOTICE*")


@dataclass(frozen=True, slots=True)
class Pushed:
    """Where a folder went: the address of the repository, the commit, the number of files."""

    url: str
    commit: str
    files: int


@dataclass(frozen=True, slots=True)
class _Head:
    """State of a branch before a push: its commit, and the files in it."""

    commit: str
    files: list[str]


def push(
    folder: Path,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    overwrite: bool = False,
) -> Pushed:
    """Verify a bundle or a language pack and send it to a model hub, in one commit.

    What the branch held before is removed in the same commit, but for .gitattributes and licence
    files; the repository and the branch are made where there are none.

    Args:
        folder: with mirror.json or pack.json in it.
        name: owner/name.
        private: make the repository a private one.
        revision: branch to commit to; None for `main`.
        message: of the commit.
        overwrite: replace what is no bundle, too.

    Raises:
        BundleError: not a bundle or pack, or a bundle in it is incomplete or changed.
        HubError: no token; or the hub refuses, cannot be reached, or holds something else there.
        ConfigError: `name` is no hub name; or the repository exists and is public, not private.
    """
    if not is_hub_name(name):
        raise ConfigError(f"{name!r} is no name on a hub: expected owner/name")
    content = _content(folder, name)
    hub = hub_library(f"pushing to {name}")
    with hub_errors(name, error=HubError, revision=revision):
        if hub.get_token() is None:
            raise HubError(
                "no token for the model hub: set HF_TOKEN, or log in with hf auth login (a token "
                "that may write)"
            )
        api = hub.HfApi()
        head = _prepare(hub, api, name, revision, private=private)
        if not overwrite:
            _refuse_others(name, head.files)
        commit = api.create_commit(
            name,
            operations=_operations(hub, content, head.files),
            commit_message=message or f"Push {folder.resolve().name} with mirror-rt",
            revision=revision,
            parent_commit=head.commit,  # somebody else's push meanwhile is not undone
        )
    return Pushed(f"{api.endpoint}/{name}", commit.oid, len(content))


def _content(folder: Path, name: str) -> dict[str, Path | bytes]:
    """Path in the repository -> file here, or bytes, of everything to send."""
    manifests = read_bundles(folder)
    content: dict[str, Path | bytes] = {}
    if (folder / Layout.manifest).is_file():
        paths = [Layout.manifest, *manifests["."].files]
        content |= {path: folder / path for path in paths}
        content[Layout.card] = _card(folder, manifests["."], name)
        return content
    content |= {path: folder / path for path in visible_files(folder)}
    content.setdefault(Layout.card, pack_card(manifests, name).encode())
    return content


def _card(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The card as it was edited; else one whose examples give the name on the hub."""
    path = folder / Layout.card
    written = path.read_bytes() if path.is_file() else None
    if written is None or written == model_card(manifest).encode():
        return model_card(manifest, name).encode()
    return written


def _prepare(hub: ModuleType, api: Any, name: str, revision: str | None, *, private: bool) -> _Head:
    """Make the repository and the branch where they are missing."""
    try:
        info = api.model_info(name)
        if private and not info.private:
            raise ConfigError(
                f"{name} exists and is public, which --private does not change: make it private "
                "in its settings, or choose another name"
            )
    except hub.errors.RepositoryNotFoundError:
        api.create_repo(name, private=private or None)
        info = api.model_info(name)
    if revision is not None:
        try:
            info = api.model_info(name, revision=revision)
        except hub.errors.RevisionNotFoundError:
            api.create_branch(name, branch=revision)
            info = api.model_info(name, revision=revision)
    return _Head(info.sha, [file.rfilename for file in info.siblings or []])


def _refuse_others(name: str, files: list[str]) -> None:
    """Raise HubError where a repository holds files of something else than this project."""
    others = [file for file in files if not _is_kept(file) and file != Layout.card]
    if others and not {Layout.manifest, Layout.pack} & set(files):
        raise HubError(
            f"{name} holds something else than a bundle ({others[0]}): choose another name, or "
            "pass --overwrite (overwrite=True) to replace it"
        )


def _operations(hub: ModuleType, content: dict[str, Path | bytes], present: list[str]) -> list[Any]:
    gone = [file for file in present if file not in content and not _is_kept(file)]
    return [
        *(hub.CommitOperationDelete(path_in_repo=file) for file in gone),
        *(
            hub.CommitOperationAdd(
                path_in_repo=path, path_or_fileobj=file if isinstance(file, bytes) else str(file)
            )
            for path, file in content.items()
        ),
    ]


def _is_kept(file: str) -> bool:
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in _KEPT)
