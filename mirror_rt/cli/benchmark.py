"""Run `mirror-rt benchmark`."""

from __future__ import annotations

import argparse
import datetime
import functools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirror_rt import __version__
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.cpus import available_cpus
from mirror_rt.diagnostics.benchmarking import (
    Cell,
    machine_name,
    measure,
    peak_memory_mb,
    plot_cells,
    synthetic_texts,
    write_json_report,
)
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError, require
from mirror_rt.inference.engines import engine_version
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import check_free
from mirror_rt.io.text import read_texts
from mirror_rt.pipeline.options import EncodeOptions

# Options that change which tokens or how many texts are encoded; `ranges` costs no time.
NOT_MEASURED = ("ranges", "prompt_name", "prompt", "on_too_long", "errors")

_LENGTHS = (8, 32, 128, 512)
_BATCHES = (1, 8, 32)
_MOST_TEXTS = 10_000  # lines of a file; more would only take longer to read


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "benchmark",
        description="Measure a bundle over texts a call and lengths, in about a minute: texts and "
        "tokens\na second, and how long a call takes (median, 95th and 99th percentile).",
        examples="""
mirror-rt benchmark bundle
mirror-rt benchmark bundle --variant int8 --threads 2 --json int8.json --plot int8.png
mirror-rt benchmark bundle --texts queries.txt --batches 1 64
""",
    )
    add_model(parser)
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help="tokens of the made-up "
                        "texts (default: 8 32 128 512, as far as the model goes)")  # fmt: skip
    parser.add_argument("--texts", metavar="FILE", help="lines of a file instead of made-up texts")
    parser.add_argument("--batches", type=int, nargs="+", default=_BATCHES, metavar="N",
                        help="texts of a call (default: 1 8 32)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=45, metavar="S",
                        help="for all, about (default 45)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="needs the extra demo")
    add_options(parser.add_argument_group("vectors"), EncodeOptions, leave_out=NOT_MEASURED)
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    _check(arguments)
    began = time.perf_counter()
    load = build(LoadOptions, from_arguments(arguments))
    options = build(EncodeOptions, from_arguments(arguments))
    encoder = Encoder.load(arguments.model, **load.keywords())
    about = _about(arguments, encoder, load, options)
    about["load_seconds"] = time.perf_counter() - began
    print(
        f"{arguments.model}, {about['variant']}, {about['provider']}, {about['threads']} threads, "
        f"{about['machine']}; loaded in {about['load_seconds']:.2f} s"
    )
    cells = _measure_all(arguments, encoder, options)
    about["peak_memory_mb"] = peak_memory_mb()
    if about["peak_memory_mb"] is not None:
        print(f"peak memory {about['peak_memory_mb']:.0f} MB")
    if arguments.json is not None:
        write_json_report(arguments.json, about, cells)
        print(f"{arguments.json}: the figures")
    if arguments.plot is not None:
        title = f"{arguments.model}, {about['variant']}: {about['machine']}"
        plot_cells(arguments.plot, title, cells)
        print(f"{arguments.plot}: the plot")


def _measure_all(
    arguments: argparse.Namespace, encoder: Encoder, options: EncodeOptions
) -> list[Cell]:
    """Measure each set of texts at each batch size, and print a row for each."""
    print(
        f"\n{'tokens':>7}{'texts a call':>14}{'texts/s':>10}{'tokens/s':>10}"
        f"{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}{'calls':>8}"
    )
    encode = functools.partial(encoder.encode, show_progress_bar=False, **asdict(options))
    cells, sets = [], _texts(arguments, encoder)
    seconds = arguments.seconds / (len(sets) * len(arguments.batches))
    for texts in sets:
        tokens = [len(ids) for ids in encoder.tokenize(texts)]
        for batch in arguments.batches:
            cells.append(measure(encode, texts, batch=batch, tokens=tokens, seconds=seconds))
            print(_row(cells[-1]), flush=True)
    print()
    return cells


def _check(arguments: argparse.Namespace) -> None:
    """Refuse unusable options and unwritable files now, rather than after a minute of work."""
    if min(arguments.batches) < 1:
        raise ConfigError(f"--batches must be at least 1, got {min(arguments.batches)}")
    if not 0 < arguments.seconds < 86_400:
        raise ConfigError(f"--seconds must be above 0, got {arguments.seconds}")
    if arguments.texts is not None and arguments.lengths is not None:
        raise ConfigError("give --texts or --lengths: the lines of a file have their own lengths")
    if arguments.plot is not None:
        require("matplotlib", extra="demo", purpose="--plot")
        if arguments.plot.suffix != ".png":
            raise ConfigError(f"--plot {arguments.plot}: expected a name in .png")
    for path in (arguments.json, arguments.plot):
        if path is not None:
            check_free(path, overwrite=True)


def _about(
    arguments: argparse.Namespace, encoder: Encoder, load: LoadOptions, options: EncodeOptions
) -> dict[str, Any]:
    manifest = encoder.manifest
    return {
        "bundle": arguments.model,
        "base_model": manifest.base_model,
        "variant": next(
            (n for n, v in manifest.variants.items() if v == encoder.variant),
            encoder.variant.precision,  # made of another variant while loading
        ),
        "provider": encoder.providers[0],
        "devices": encoder.devices,
        "threads": load.threads or available_cpus(),
        "batch_size": options.batch_size,
        "load": load.keywords(),
        "encode": asdict(options),
        "texts": arguments.texts or "synthetic",
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "mirror_rt": __version__,
        **engine_version(encoder.providers[0]),
    }


def _texts(arguments: argparse.Namespace, encoder: Encoder) -> list[list[str]]:
    """Return the sets of texts, which are measured one after the other."""
    if arguments.texts is not None:
        return [read_texts(arguments.texts, _MOST_TEXTS)]
    lengths = arguments.lengths or sorted({min(n, encoder.max_length) for n in _LENGTHS})
    count = 4 * max(arguments.batches)
    return [synthetic_texts(encoder, length, count) for length in lengths]


def _row(cell: Cell) -> str:
    delays = [
        f"{'-' if ms is None else f'{ms:.2f}':>10}"
        for ms in (cell.p50_ms, cell.p95_ms, cell.p99_ms)
    ]
    return (
        f"{cell.tokens:>7.0f}{cell.texts:>14}{cell.texts_per_second:>10.1f}"
        f"{cell.tokens_per_second:>10.0f}{''.join(delays)}{cell.calls:>8}"
    )
