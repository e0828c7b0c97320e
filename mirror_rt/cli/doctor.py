"""Run `mirror-rt doctor`."""

from __future__ import annotations

import argparse
import dataclasses
import json

from mirror_rt.cli.common import fill_table
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.inference.load_options import LoadOptions


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "doctor",
        description="Look at versions, execution providers, the libraries of CUDA, the processors\n"
        "that this process may use, the native extension and the cache folder; of a bundle,\n"
        "load it and compare its vectors. Ends with 1 where there is a fault.",
        examples="""
mirror-rt doctor
mirror-rt doctor bundle
mirror-rt doctor bundle --providers cuda --devices all
mirror-rt doctor --json
""",
    )
    add_model(parser, help="folder or hub name of a bundle to test", required=False)
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 if there is a fault."""
    from mirror_rt.diagnostics.doctor import examine

    findings = examine(arguments.model, build(LoadOptions, from_arguments(arguments)))
    faults = sum(finding.status == "fault" for finding in findings)
    if arguments.json:
        values = {"faults": faults, "findings": [dataclasses.asdict(f) for f in findings]}
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return int(faults > 0)
    marks = {"ok": "", "warning": "WARNING: ", "fault": "FAULT: "}
    print(fill_table([(f.name, marks[f.status] + f.detail) for f in findings]))
    for finding in findings:
        if finding.remedy is not None:
            print(f"\nto mend {finding.name}: {finding.remedy}")
    return int(faults > 0)
