"""Run `mirror-rt push`."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirror_rt.bundle.push import push
from mirror_rt.cli.common import hub_progress
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "push",
        description="Send a bundle, or a language pack, to a model hub: every file is compared "
        "with its hash\nfirst, and all go in one commit, which also removes what the former "
        "version had.\nThe repository and the branch are made where there are none; a bundle "
        "without README.md\ngets its model card.\n\n"
        "The token, one that may write, is the one in HF_TOKEN or that of 'hf auth login'; "
        "HF_ENDPOINT\nnames a hub of your own.",
        examples="""
mirror-rt push bundle owner/name
mirror-rt push bundle owner/name --private --message "Tuned on 20,000 words"
mirror-rt push bundle owner/name --revision v2
""",
    )
    add_model(parser, help="folder of a bundle or a language pack")
    parser.add_argument("name", metavar="OWNER/NAME", help="repository on the hub")
    parser.add_argument("--private", action="store_true", help="make the repository a private one")
    parser.add_argument("--revision", metavar="BRANCH", help="branch to commit to (default: main)")
    parser.add_argument("--message", metavar="TEXT", help="of the commit")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a repository that holds no bundle, too"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    with hub_progress(arguments, f"pushing {arguments.model} to {arguments.name}"):
        pushed = push(
            Path(arguments.model),
            arguments.name,
            private=arguments.private,
            revision=arguments.revision,
            message=arguments.message,
            overwrite=arguments.overwrite,
        )
    print(f"{pushed.url}: {pushed.files} files, commit {pushed.commit}")
