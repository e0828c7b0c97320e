"""Measure throughput and latency of an encoder by texts per call and length."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from mirror_rt.bundle.manifest import Layout
from mirror_rt.cpus import processor_names
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.evaluation.plots import COLOURS, label_lines, new_figure, save_png
from mirror_rt.io.atomic import write_json
from mirror_rt.system import peak_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = 500
# The number of calls from which a percentile is reported; fewer do not show such rare delays.
_CALLS_FOR = {95: 20, 99: 100}


@dataclass(frozen=True, slots=True)
class Cell:
    """The measurements for one number of texts per call and one length of texts."""

    texts: int  # number of texts per call
    tokens: float  # mean number of tokens of a text, special tokens included
    calls: int  # number of calls that were timed
    texts_per_second: float
    tokens_per_second: float  # mean throughput over all calls, without padding
    p50_ms: float  # median duration of a call
    p95_ms: float | None  # 95th percentile of it; None for fewer than 20 calls
    p99_ms: float | None  # 99th percentile of it; None for fewer than 100 calls


def synthetic_texts(encoder: Encoder, tokens: int, count: int, *, seed: int = 0) -> list[str]:
    """Make `count` different texts of `tokens` tokens each (roughly so in some vocabularies).

    They consist of words that are a single token in the bundle's vocabulary.
    """
    words = _single_token_words(encoder)
    special = len(encoder.tokenize(words[0])[0]) - 1
    if not special < tokens <= encoder.max_length:
        raise ConfigError(
            f"a length of {tokens} tokens: expected {special + 1} .. {encoder.max_length} "
            f"({special} are special tokens)"
        )
    generator = random.Random(f"{seed}-{tokens}")
    return [" ".join(generator.choices(words, k=tokens - special)) for _ in range(count)]


def _single_token_words(encoder: Encoder) -> list[str]:
    tokenizer = Tokenizer.from_file(str(encoder.folder / Layout.tokenizer))
    tokenizer.no_padding()  # to a fixed length, as the files of some models say
    size = tokenizer.get_vocab_size()
    words: list[str] = []
    for number in random.Random(0).sample(range(size), size):
        word = tokenizer.decode([number]).strip()
        # Check it twice, because the first word of a text may be tokenised differently.
        if (
            word.isalpha()
            and len(tokenizer.encode(f"{word} {word}", add_special_tokens=False)) == 2
        ):
            words.append(word)
        if len(words) == _WORDS:
            break
    if not words:
        raise BundleError(f"{encoder.folder}: no word is one token; give --texts FILE")
    return words


def measure(
    encode: Callable[[list[str]], object],
    texts: Sequence[str],
    *,
    batch: int,
    tokens: Iterable[int],
    seconds: float,
) -> Cell:
    """Call `encode` on `batch` texts at a time for about `seconds` seconds, and time the calls.

    The texts, of as many tokens as `tokens` says, are taken in turn again and again. The first
    call is not counted. If calls are long, at least three are timed, or as many as begin within
    twice the time, but at least one.
    """
    lengths = np.array(list(tokens))
    durations: list[float] = []
    used = 0
    began = time.perf_counter()
    while True:
        spent, calls = time.perf_counter() - began, len(durations)
        if calls >= 2 and (spent > 2 * seconds or (spent > seconds and calls >= 4)):
            break
        rows = [(len(durations) * batch + i) % len(texts) for i in range(batch)]
        part = [texts[row] for row in rows]
        start = time.perf_counter()
        encode(part)
        durations.append(time.perf_counter() - start)
        used += int(lengths[rows].sum()) if len(durations) > 1 else 0
    timed = np.array(durations[1:])
    p95, p99 = (
        float(np.percentile(timed, p) * 1e3) if len(timed) >= least else None
        for p, least in _CALLS_FOR.items()
    )
    total = float(timed.sum())
    return Cell(
        texts=batch,
        tokens=used / (len(timed) * batch),
        calls=len(timed),
        texts_per_second=len(timed) * batch / total,
        tokens_per_second=used / total,
        p50_ms=float(np.median(timed) * 1e3),
        p95_ms=p95,
        p99_ms=p99,
    )


def machine_name() -> str:
    """Return the number and the name of the processors, as far as Linux tells them."""
    names = processor_names()
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def peak_memory_mb() -> float | None:
    """Return the most physical memory that this process has used, in MB; None if unknown."""
    with contextlib.suppress(OSError):  # on Linux, since ru_maxrss begins at the parent's value
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 2**10
    peak = peak_memory()
    return None if peak is None else peak / 2**20


def write_json_report(path: Path, about: dict[str, object], cells: list[Cell]) -> None:
    """Write the measurements and their circumstances as JSON; replace an existing file."""
    write_json(path, about | {"cells": [dataclasses.asdict(cell) for cell in cells]})


def plot_cells(path: Path, title: str, cells: list[Cell]) -> None:
    """Plot throughput and latency by length as PNG, with a line for each number of texts."""
    figure = new_figure(11, 4)
    from matplotlib.ticker import LogLocator

    rate, delay = figure.subplots(1, 2)
    lengths = sorted({round(cell.tokens) for cell in cells})
    ends: dict[Axes, list[tuple[float, str, str]]] = {rate: [], delay: []}
    for batch, colour in zip(sorted({c.texts for c in cells}), itertools.cycle(COLOURS)):
        line = sorted((cell for cell in cells if cell.texts == batch), key=lambda c: c.tokens)
        tokens = [cell.tokens for cell in line]
        tail = [(cell.tokens, cell.p95_ms) for cell in line if cell.p95_ms is not None]
        rate.plot(tokens, [cell.texts_per_second for cell in line], "o-", color=colour)
        delay.plot(tokens, [cell.p50_ms for cell in line], "o-", color=colour)
        delay.plot([x for x, _ in tail], [y for _, y in tail], ":", color=colour)
        label = f"{batch} text{'s' * (batch > 1)} a call"
        ends[rate].append((line[-1].texts_per_second, label, colour))
        ends[delay].append((line[-1].p50_ms, label, colour))
    for axes, label in ((rate, "texts/s"), (delay, "ms a call (dotted: 95th percentile)")):
        axes.set(xlabel="tokens of a text", ylabel=label, xscale="log", yscale="log")
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        label_lines(axes, ends[axes])
    save_png(figure, path, title)
