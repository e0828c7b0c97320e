"""The command `mirror-rt align`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from mirror_rt.cli.common import format_table
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "align",
        description="Map the languages of a pack into one vector space, by dictionaries, so that "
        "vectors of\ndifferent languages can be compared. The map (orthogonal Procrustes) becomes "
        "the last\nlayer of each graph; similarities within a language stay as they are.",
        examples="""
mirror-rt align pack --dictionary en-fr.tsv --dictionary en-ru.tsv
mirror-rt align pack --dictionary en-fr=words.txt --to en --out aligned
""",
    )
    add_model(parser, help="folder of a pack", metavar="PACK")
    parser.add_argument(
        "--dictionary",
        action="append",
        required=True,
        metavar="FILE",
        help="word TAB translation on each line; the name says the languages (en-fr.tsv), or "
        "en-fr=FILE does. Several may be given",
    )
    parser.add_argument(
        "--to",
        metavar="TAG",
        help="language whose space the others are mapped into (default: that of the pack's "
        "default)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write (default: the pack itself, replaced when all is done)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DIR if it exists")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.set_defaults(run=run, kept=lambda _: "nothing was written")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_export.pack.align import align_pack

    pack = Path(arguments.model)
    found = align_pack(
        pack,
        arguments.dictionary,
        out=arguments.out,
        to=arguments.to,
        overwrite=arguments.overwrite,
    )
    if arguments.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return
    header = ["bundle", "to", "entries", "held-out words", "found before", "found after"]
    rows = [
        [one.name, one.to, str(one.entries), str(one.tested), f"{one.before:.3f}",
         f"{one.after:.3f}"]
        for one in found
    ]  # fmt: skip
    print(format_table(header, rows))
    print(f"{arguments.out or pack}: one vector space")
