"""The command `mirror-rt demo`: tune, export, encode and compare, on real words."""

from __future__ import annotations

import argparse
import dataclasses
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import mirror_export
import mirror_train
from mirror_rt.cli.common import progress
from mirror_rt.cli.info import describe_parity
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.evaluation import Geometry, cosine_pairs, evaluate_geometry
from mirror_rt.evaluation.plots import plot_cosine_distributions
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.io.atomic import check_free

if TYPE_CHECKING:
    from mirror_rt.encoding.batch_encoder import BatchEncoder, Vectors
    from mirror_rt.evaluation.plots import Cosines

__all__ = ["add_parser"]

_PROBES = ("happy", "doctor", "river", "buy", "quickly")


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "demo",
        description="Tune all-MiniLM-L6-v2 on the 10,000 most frequent words of English, export "
        "it,\nand show what changed. Leaves a bundle to use.",
        examples="mirror-rt demo --out demo",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="folder for what it makes (default: demo)",
    )
    parser.add_argument("--top", type=int, default=10_000, help="words (default 10000)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier demo")
    parser.add_argument("--offline", action="store_true", help="never ask the network")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    out: Path = arguments.out
    check_free(out, overwrite=arguments.overwrite)
    check_free(out / "tuned", overwrite=True)  # --out may be a file
    data = mirror_train.word_list("en", top=arguments.top)
    before = mirror_train.TorchEncoder.load(offline=arguments.offline)
    print(f"1/4  tune {mirror_train.DEFAULT_MODEL} on {len(data)} English words, without labels")
    config = mirror_train.TuneConfig(
        recipe=mirror_train.load_recipe("word"),
        out=out / "tuned",
        overwrite=True,
        offline=arguments.offline,
        show_progress_bar=progress(arguments),
    )
    try:
        report = mirror_train.tune(data, config)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; start again with --overwrite") from error
    stats = report.stats
    print(
        f"     {len(stats.losses)} steps in {stats.seconds:.0f} s, "
        f"loss {stats.losses[0]:.3f} -> {stats.losses[-1]:.3f}"
    )
    print("2/4  export it to ONNX and compare with PyTorch")
    exported = mirror_export.export_bundle(
        mirror_export.ExportConfig(str(out / "tuned"), out / "bundle", overwrite=True)
    )
    print(f"     {describe_parity(exported.variant())}")
    print("3/4  encode the words with the bundle (no torch), and look")
    after = Encoder.load(out / "bundle")
    vectors = {"before": before.encode(data.first), "after": after.encode(data.first)}
    _print_neighbours(data.first, vectors)
    _print_geometry(evaluate_geometry(before, data.first), evaluate_geometry(after, data.first))
    print("4/4  plot the cosines of synonyms and of random pairs")
    plot_cosine_distributions(
        out / "cosines.png",
        {
            "before": (_synonym_cosines(before), _random_cosines(vectors["before"])),
            "after": (_synonym_cosines(after), _random_cosines(vectors["after"])),
        },
    )
    print(f"     {out / 'cosines.png'}")
    print(
        "\nUse it:\n\n"
        "    from mirror_rt import Encoder\n"
        f'    encoder = Encoder.load("{out / "bundle"}")\n'
        '    vectors = encoder.encode(["happy", "glad"])\n'
    )


def _print_neighbours(words: list[str], vectors: dict[str, Vectors]) -> None:
    for probe in (word for word in _PROBES if word in words):
        for when, matrix in vectors.items():
            nearest = np.argsort(-(matrix @ matrix[words.index(probe)]))[1:6]
            name = probe if when == "before" else ""
            print(f"     {name:<8} {when + ':':<8}{', '.join(words[i] for i in nearest)}")


def _print_geometry(before: Geometry, after: Geometry) -> None:
    print(f"     {'':<28}{'before':>9}{'after':>9}")
    for field in dataclasses.fields(Geometry)[1:]:
        old, new = getattr(before, field.name), getattr(after, field.name)
        print(f"     {field.name.replace('_', ' '):<28}{old:>9.3f}{new:>9.3f}")


def _synonym_cosines(model: BatchEncoder) -> Cosines:
    table = (resources.files("mirror_export") / "cli" / "demo_synonyms.tsv").read_text("utf-8")
    pairs = [line.split("\t") for line in table.splitlines()]
    return cosines(model, [a for a, _ in pairs], [b for _, b in pairs])


def _random_cosines(vectors: Vectors) -> Cosines:
    return cosine_pairs(vectors.astype(np.float64), pairs=20_000, seed=0)
