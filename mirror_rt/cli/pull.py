"""Run `mirror-rt pull`."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirror_rt.bundle.hub import cached
from mirror_rt.bundle.pull import pull
from mirror_rt.cli.common import add_hub_options, hub_progress
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "pull",
        description="Download a bundle, or a language pack, from a model hub into a folder. Every "
        "file is compared\nwith its hash; the folder appears when it is whole. After an "
        "interruption run it again:\nfiles that were transferred whole are in the hub's cache "
        "(HF_HOME).\n\n"
        "A private repository needs a token: HF_TOKEN, or 'hf auth login'. HF_ENDPOINT names a "
        "hub of\nyour own.",
        examples="""
mirror-rt pull owner/name --out bundle
mirror-rt pull owner/name --out bundle --variant int8
mirror-rt pull owner/name --out bundle --revision v2
mirror-rt pull owner/name --out bundle --offline
""",
    )
    add_model(parser, help="repository on the hub", metavar="OWNER/NAME")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--variant",
        action="append",
        metavar="NAME",
        help="take this graph alone (fp32, int8 ...; may be repeated; default: every graph)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    add_hub_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    with hub_progress(arguments, f"pulling {arguments.model}", cached(arguments.model)):
        pulled = pull(
            arguments.model,
            arguments.out,
            revision=arguments.revision,
            variants=arguments.variant,
            offline=arguments.offline,
            overwrite=arguments.overwrite,
        )
    print(
        f"{arguments.out}: {arguments.model} at commit {pulled.commit}, {pulled.files} files, "
        f"{pulled.bytes / 1e6:.1f} MB, every SHA-256 verified"
    )
