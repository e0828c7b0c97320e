"""Run `mirror-rt triton`."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirror_rt.bundle.resolve import resolve_bundle
from mirror_rt.cli.common import add_hub_options
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.triton.repository import RepositoryConfig, write_repository


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "triton",
        description="Write a model repository of the NVIDIA Triton Inference Server: of each\n"
        "bundle the graph (onnxruntime backend, dynamic batching), its tokenizer (Python\n"
        "backend) and both as one model that takes texts.",
        examples="""
mirror-rt triton bundle --out repository
mirror-rt triton bundle --out repository --name embed --variant fp16 --max-batch-size 128
tritonserver --model-repository repository
""",
    )
    add_model(parser, help="folder or hub name of a bundle or a pack", metavar="BUNDLE|PACK")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    add_options(parser, RepositoryConfig)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    add_hub_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = build(RepositoryConfig, from_arguments(arguments))
    source = resolve_bundle(
        arguments.model,
        revision=arguments.revision,
        offline=arguments.offline,
        variants=[config.variant],
    )
    names = write_repository(source, arguments.out, config, overwrite=arguments.overwrite)
    print(f"{arguments.out}: {', '.join(names)}")
