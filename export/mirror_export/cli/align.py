"""The command `mirror-rt align`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.io.tables import shown

if TYPE_CHECKING:
    from mirror_export.pack.align import Alignment


@dataclass(frozen=True, kw_only=True)
class Align(Invocation):
    """Map the languages of a pack into one vector space, by dictionaries.

    Vectors of different languages can then be compared. The map (orthogonal Procrustes) becomes the
    last layer of each graph; similarities within a language stay as they are.

    Examples:
        mirror-rt align pack --dictionary en-fr.tsv --dictionary en-ru.tsv
        mirror-rt align pack --dictionary en-fr=words.txt --to en --out aligned
    """

    model: Annotated[Path, Help("folder of a pack", "PACK", word=True)]
    dictionary: Annotated[
        tuple[str, ...],
        Help("word TAB translation on each line; the name says the languages (en-fr.tsv), or "
             "en-fr=FILE does", "FILE"),
    ]  # fmt: skip
    to: Annotated[
        str | None,
        Help("language whose space the others are mapped into (default: that of the pack's "
             "default)", "TAG"),
    ] = None  # fmt: skip
    out: Annotated[
        Path | None,
        Help("folder to write (default: the pack itself, replaced when all is done)", "DIR"),
    ] = None
    overwrite: Annotated[bool, Help("replace DIR if it exists")] = False
    json: Annotated[bool, Help("results as JSON on standard output")] = False

    def kept(self) -> str:
        return "nothing was written"

    def run(self) -> None:
        from mirror_export.pack.align import align_pack

        found = align_pack(
            self.model, self.dictionary, out=self.out, to=self.to, overwrite=self.overwrite
        )
        header = ["bundle", "to", "entries", "held-out words", "found before", "found after"]
        print(shown(found, header, _row, self.json))
        if not self.json:
            print(f"{self.out or self.model}: one vector space")


def _row(one: Alignment) -> list[str]:
    counts = (str(one.entries), str(one.tested))
    return [one.name, one.to, *counts, f"{one.before:.3f}", f"{one.after:.3f}"]
