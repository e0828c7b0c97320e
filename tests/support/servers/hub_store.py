"""The contents of a fake model hub: repositories, commits, branches, and faults to inject."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

__all__ = ["LFS", "Blob", "HubStore", "Repository"]

LFS = re.compile(r"\.(onnx|onnx_data|bin|safetensors)$")


@dataclass
class Blob:
    """One version of one file."""

    content: bytes
    lfs: bool

    @property
    def git_sha1(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1


@dataclass
class Repository:
    """The commits of a repository (hash -> path -> file), and the branches that point to them."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, tree: dict[str, Blob], message: str) -> str:
        named = "".join(f"{path} {blob.etag}\n" for path, blob in sorted(tree.items()))
        seed = f"{self.branches.get(branch)} {message} {len(self.commits)}\n{named}"
        commit = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[commit] = tree
        self.branches[branch] = commit
        self.messages.append(message)
        return commit

    def resolve(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None


@dataclass
class HubStore:
    """The whole contents of the hub, in memory.

    Attributes:
        repositories: owner/name -> repository.
        objects: SHA-256 -> LFS file.
        break_off: path, or `upload` -> number of bytes after which its transfer breaks off.
        damage: paths whose last byte is changed on the way out.
        requests: method and path of each request, in order.
        leaked: paths of requests to the other host that wrongly carried the token.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    break_off: dict[str, int] = field(default_factory=dict)
    damage: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def add(self, name: str, files: dict[str, bytes], **options: bool) -> str:
        """Create or extend a repository; return the commit."""
        repository = self.repositories.setdefault(name, Repository(**options))
        tree = dict(repository.commits.get(repository.branches.get("main", ""), {}))
        for path, content in files.items():
            tree[path] = Blob(content, bool(LFS.search(path)))
        return repository.commit("main", tree, "by hand")

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        repository = self.repositories[name]
        tree = repository.commits[repository.branches.get(revision, revision)]
        return {path: blob.content for path, blob in tree.items()}

    def downloads(self) -> list[str]:
        """Return the paths whose content was requested, in order."""
        content = r"GET (?:/lfs-download)?/[^/]+/[^/]+/(?:resolve/)?[0-9a-f]{40}/(.+)"
        found = (re.match(content, line) for line in self.requests)
        return [unquote(match[1]) for match in found if match]
