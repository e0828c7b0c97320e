"""Run `mirror-rt triton`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.bundle.resolve import resolve_bundle
from mirror_rt.cli.common import BundleOrPack, HubOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Group, Help
from mirror_rt.triton.repository import RepositoryConfig, write_repository


@dataclass(frozen=True, kw_only=True)
class Triton(Invocation):
    """Write a model repository of the NVIDIA Triton Inference Server.

    It has of each bundle the graph (onnxruntime backend, dynamic batching), its tokenizer (Python
    backend) and both as one model that takes texts.

    Examples:
        mirror-rt triton bundle --out repository
        mirror-rt triton bundle --out repository --name embed --variant fp16 --max-batch-size 128
        tritonserver --model-repository repository
    """

    model: BundleOrPack
    out: Annotated[Path, Help("folder to write", "DIR")]
    config: Annotated[RepositoryConfig, Group()]
    overwrite: Annotated[bool, Help("replace an existing folder")] = False
    hub: HubOptions

    def run(self) -> None:
        hub = self.hub.make()
        variants = [self.config.variant]
        source = resolve_bundle(
            self.model, revision=hub.revision, offline=hub.offline, variants=variants
        )
        names = write_repository(source, self.out, self.config, overwrite=self.overwrite)
        print(f"{self.out}: {', '.join(names)}")
