"""Push a folder to a model hub: verify it first, then send it in one commit."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mirror_rt.bundle.hub import Repository, hub_library, is_hub_name
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.model_card import model_card, pack_card
from mirror_rt.bundle.pack_index import read_bundles, refuse_links_out, visible_files
from mirror_rt.errors import ConfigError, HubError, Setting

# These files belong to the hub or the owner, not to a former version, and are never removed.
LICENSES = ("LICENSE*", "NOTICE*")
_KEPT = (".gitattributes", *LICENSES)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push: the address of the repository, the commit, the number of files."""

    url: str
    commit: str
    files: int


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

    The former files of the branch are removed in the same commit, except .gitattributes and licence
    files. The repository and the branch `revision` (None for `main`) are created if they do not
    exist. One that does not hold a bundle is only replaced with `overwrite`.
    """
    if not is_hub_name(name):
        raise ConfigError(f"{name!r} is no name on a hub: expected owner/name")
    content = _content(folder, name)
    hub = hub_library(f"pushing to {name}")
    with Repository(name, revision, error=HubError).errors():
        if hub.get_token() is None:
            raise HubError(
                "no token for the model hub: set HF_TOKEN, or log in with hf auth login (a token "
                "that may write)"
            )
        api = hub.HfApi()
        parent, files = _prepare(hub, api, name, revision, private=private)
        if not overwrite:
            _refuse_others(name, files)
        commit = api.create_commit(
            name,
            operations=_operations(hub, content, files),
            commit_message=message or f"Push {folder.resolve().name} with mirror-rt",
            revision=revision,
            parent_commit=parent,  # fail rather than undo a push that came in between
        )
    return Pushed(f"{api.endpoint}/{name}", commit.oid, len(content))


def _content(folder: Path, name: str) -> dict[str, Path | bytes]:
    """Return the files to send: path in the repository -> local file, or bytes."""
    refuse_links_out(folder)
    manifests = read_bundles(folder)
    if bundle := manifests.get("."):
        files = {path: folder / path for path in (Layout.manifest, *bundle.files)}
        return {**files, Layout.card: _card(folder, bundle, name)}
    files = {path: folder / path for path in visible_files(folder)}
    return {Layout.card: pack_card(manifests, name).encode(), **files}


def _card(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the card if it was edited, else one whose examples use the name on the hub."""
    path = folder / Layout.card
    written = path.read_bytes() if path.is_file() else None
    if written is None or written == model_card(manifest).encode():
        return model_card(manifest, name).encode()
    return written


def _prepare(
    hub: ModuleType, api: Any, name: str, revision: str | None, *, private: bool
) -> tuple[str, list[str]]:
    """Create the repository and the branch if need be; return the branch's commit and files."""
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
    return info.sha, [file.rfilename for file in info.siblings or []]


def _refuse_others(name: str, files: list[str]) -> None:
    """Raise HubError if a repository has files, but neither a bundle nor a pack."""
    others = [file for file in files if not _is_kept(file) and file != Layout.card]
    if others and not {Layout.manifest, Layout.pack} & set(files):
        raise HubError(
            f"{name} holds something else than a bundle ({others[0]}): choose another name, or "
            "pass ",
            Setting("overwrite", True),
            " to replace it",
        )


def _operations(hub: ModuleType, content: dict[str, Path | bytes], present: list[str]) -> list[Any]:
    gone = [file for file in present if file not in content and not _is_kept(file)]
    return [
        *map(hub.CommitOperationDelete, gone),
        *(hub.CommitOperationAdd(path, file) for path, file in content.items()),
    ]


def _is_kept(file: str) -> bool:
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in _KEPT)
