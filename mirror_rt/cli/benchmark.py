"""Run `mirror-rt benchmark`."""

from __future__ import annotations

import datetime
import functools
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from mirror_rt.cli.common import Bundle, ModelOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
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
from mirror_rt.io.rows import read_texts
from mirror_rt.pipeline.options import EncodeOptions
from mirror_rt.version import __version__

# Options that change which tokens or how many texts are encoded; `ranges` costs no time.
NOT_MEASURED = ("ranges", "prompt_name", "prompt", "on_too_long", "errors")

_LENGTHS = (8, 32, 128, 512)
_MOST_TEXTS = 10_000  # lines of a file; more would only take longer to read


@dataclass(frozen=True, kw_only=True)
class Benchmark(Invocation):
    """Measure a bundle over texts a call and lengths, in about a minute.

    Says how many texts and tokens it encodes in a second, and how long a call takes (median, 95th
    and 99th percentile).

    Examples:
        mirror-rt benchmark bundle
        mirror-rt benchmark bundle --variant int8 --threads 2 --json int8.json --plot int8.png
        mirror-rt benchmark bundle --texts queries.txt --batches 1 64
    """

    model: Bundle
    lengths: Annotated[
        tuple[int, ...],
        Help("tokens of the made-up texts (default: 8 32 128 512, as far as the model goes)",
             many=True),
    ] = ()  # fmt: skip
    texts: Annotated[str | None, Help("lines of a file instead of made-up texts", "FILE")] = None
    batches: Annotated[tuple[int, ...], Help("texts of a call", many=True)] = (1, 8, 32)
    seconds: Annotated[float, Help("for all, about", "S")] = 45
    json: Annotated[Path | None, Help("write the figures there, too")] = None
    plot: Annotated[Path | None, Help("needs the extra demo", "FILE.png")] = None
    options: Annotated[Given[EncodeOptions], Group("vectors", leave_out=NOT_MEASURED)]
    load: ModelOptions

    def run(self) -> None:
        self._check()
        began = time.perf_counter()
        load, options = self.load.make(), self.options.make()
        encoder = Encoder.load(self.model, **load.keywords())
        about = self._about(encoder, load, options)
        about["load_seconds"] = time.perf_counter() - began
        print(
            f"{self.model}, {about['variant']}, {about['provider']}, {about['threads']} threads, "
            f"{about['machine']}; loaded in {about['load_seconds']:.2f} s\n"
            f"{about['provider']}: {about['provider_reason']}"
        )
        cells = self._measure_all(encoder, options)
        about["peak_memory_mb"] = peak_memory_mb()
        if about["peak_memory_mb"] is not None:
            print(f"peak memory {about['peak_memory_mb']:.0f} MB")
        if self.json is not None:
            write_json_report(self.json, about, cells)
            print(f"{self.json}: the figures")
        if self.plot is not None:
            plot_cells(self.plot, f"{self.model}, {about['variant']}: {about['machine']}", cells)
            print(f"{self.plot}: the plot")

    def _measure_all(self, encoder: Encoder, options: EncodeOptions) -> list[Cell]:
        """Measure each set of texts at each batch size, and print a row for each."""
        print(
            f"\n{'tokens':>7}{'texts a call':>14}{'texts/s':>10}{'tokens/s':>10}"
            f"{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}{'calls':>8}"
        )
        encode = functools.partial(encoder.encode, show_progress_bar=False, **asdict(options))
        cells, sets = [], self._texts(encoder)
        seconds = self.seconds / (len(sets) * len(self.batches))
        for texts in sets:
            tokens = [len(ids) for ids in encoder.tokenize(texts)]
            for batch in self.batches:
                cells.append(measure(encode, texts, batch=batch, tokens=tokens, seconds=seconds))
                print(_row(cells[-1]), flush=True)
        print()
        return cells

    def _check(self) -> None:
        """Refuse unusable options and unwritable files now, rather than after a minute of work."""
        if min(self.batches) < 1:
            raise ConfigError(f"--batches must be at least 1, got {min(self.batches)}")
        if not 0 < self.seconds < 86_400:
            raise ConfigError(f"--seconds must be above 0, got {self.seconds}")
        if self.texts is not None and self.lengths:
            raise ConfigError(
                "give --texts or --lengths: the lines of a file have their own lengths"
            )
        if self.plot is not None:
            require("matplotlib", extra="demo", purpose="--plot")
            if self.plot.suffix != ".png":
                raise ConfigError(f"--plot {self.plot}: expected a name in .png")
        for path in (self.json, self.plot):
            if path is not None:
                check_free(path, overwrite=True)

    def _about(self, encoder: Encoder, load: LoadOptions, options: EncodeOptions) -> dict[str, Any]:
        manifest = encoder.manifest
        return {
            "bundle": self.model,
            "base_model": manifest.base_model,
            "variant": next(
                (n for n, v in manifest.variants.items() if v == encoder.variant),
                encoder.variant.precision,  # made of another variant while loading
            ),
            "provider": encoder.providers[0],
            "provider_reason": encoder.provider_reason,
            "devices": encoder.devices,
            "threads": load.threads or available_cpus(),
            "batch_size": options.batch_size,
            "load": load.keywords(),
            "encode": asdict(options),
            "texts": self.texts or "synthetic",
            "machine": machine_name(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "mirror_rt": __version__,
            **engine_version(encoder.providers[0]),
        }

    def _texts(self, encoder: Encoder) -> list[list[str]]:
        """Return the sets of texts, which are measured one after the other."""
        if self.texts is not None:
            return [read_texts(self.texts, _MOST_TEXTS)]
        lengths = self.lengths or sorted({min(n, encoder.max_length) for n in _LENGTHS})
        count = 4 * max(self.batches)
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
