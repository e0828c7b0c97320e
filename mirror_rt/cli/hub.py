"""Run `mirror-rt pull` and `mirror-rt push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.bundle import pull, push
from mirror_rt.bundle.hub import cached
from mirror_rt.cli.common import HubOptions, hub_progress
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help


@dataclass(frozen=True, kw_only=True)
class Pull(Invocation):
    """Download a bundle, or a language pack, from a model hub into a folder.

    Every file is compared with its hash; the folder appears when it is whole. After an interruption
    run it again: files that were transferred whole are in the hub's cache (HF_HOME).

    A private repository needs a token: HF_TOKEN, or 'hf auth login'. HF_ENDPOINT names a hub of
    your own.

    Examples:
        mirror-rt pull owner/name --out bundle
        mirror-rt pull owner/name --out bundle --variant int8
        mirror-rt pull owner/name --out bundle --revision v2
        mirror-rt pull owner/name --out bundle --offline
    """

    model: Annotated[str, Help("repository on the hub", "OWNER/NAME", word=True)]
    out: Annotated[Path, Help("folder to write", "DIR")]
    variant: Annotated[
        tuple[str, ...],
        Help("take this graph alone (fp32, int8 ...; default: every graph)", "NAME"),
    ] = ()
    overwrite: Annotated[bool, Help("replace an existing folder")] = False
    hub: HubOptions
    quiet: Annotated[bool, Help("no progress on standard error")] = False

    def run(self) -> None:
        doing = f"pulling {self.model}"
        with hub_progress(doing, cached(self.model), quiet=self.quiet):
            pulled = pull.pull(
                self.model,
                self.out,
                variants=self.variant or None,
                overwrite=self.overwrite,
                **self.hub.values(),
            )
        print(
            f"{self.out}: {self.model} at commit {pulled.commit}, {pulled.files} files, "
            f"{pulled.bytes / 1e6:.1f} MB, every SHA-256 verified"
        )


@dataclass(frozen=True, kw_only=True)
class Push(Invocation):
    """Send a bundle, or a language pack, to a model hub.

    Every file is compared with its hash first, and all go in one commit, which also removes the
    files of the former version. The repository and the branch are made where there are none; a
    bundle without README.md gets its model card.

    The token, one that may write, is the one in HF_TOKEN or that of 'hf auth login'; HF_ENDPOINT
    names a hub of your own.

    Examples:
        mirror-rt push bundle owner/name
        mirror-rt push bundle owner/name --private --message "Tuned on 20,000 words"
        mirror-rt push bundle owner/name --revision v2
    """

    model: Annotated[str, Help("folder of a bundle or a language pack", "BUNDLE", word=True)]
    name: Annotated[str, Help("repository on the hub", "OWNER/NAME", word=True, flag=None)]
    private: Annotated[bool, Help("make the repository a private one")] = False
    revision: Annotated[str | None, Help("branch to commit to (default: main)", "BRANCH")] = None
    message: Annotated[str | None, Help("of the commit", "TEXT")] = None
    overwrite: Annotated[bool, Help("replace a repository that holds no bundle, too")] = False
    quiet: Annotated[bool, Help("no progress on standard error")] = False

    def run(self) -> None:
        with hub_progress(f"pushing {self.model} to {self.name}", quiet=self.quiet):
            pushed = push.push(
                Path(self.model),
                self.name,
                private=self.private,
                revision=self.revision,
                message=self.message,
                overwrite=self.overwrite,
            )
        print(f"{pushed.url}: {pushed.files} files, commit {pushed.commit}")
