"""Run `mirror-rt distill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.cli.common import Bundle, ModelOptions, Quiet
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Group, Help
from mirror_rt.distillation import DistillConfig, distill
from mirror_rt.encoding.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Distill(Invocation):
    """Make a static encoder of a bundle: a table of vectors of tokens and words.

    It is a bundle for all other commands, and model2vec and sentence-transformers read it, too.

    Examples:
        mirror-rt distill all-MiniLM-L6-v2 --words en --out static
        mirror-rt distill bundle --words words.txt --out static
        mirror-rt encode static --input texts.txt --output vectors.npy
    """

    model: Bundle
    out: Annotated[Path, Help("folder to write", "STATIC")]
    config: Annotated[DistillConfig, Group()]
    overwrite: Annotated[bool, Help("replace an existing folder")] = False
    quiet: Quiet = False
    load: ModelOptions

    def run(self) -> None:
        with Encoder.load(self.model, **self.load.make().keywords()) as encoder:
            made = distill(encoder, self.out, self.config, overwrite=self.overwrite,
                           show_progress_bar=not self.quiet)  # fmt: skip
        if not self.quiet:
            tokens = (made.training or {})["tokens"]
            print(f"{self.out}: {tokens} tokens and words of {made.dimension} dimensions")
