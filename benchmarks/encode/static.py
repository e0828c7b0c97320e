"""Compare a static encoder with the encoder that it came from, model2vec and sentence-transformers.

Speed: all contenders take turns in this process, on the same table and the same texts; medians of
the rounds, by the clock and by the processor time of all threads. The encoder takes fewer texts.
Quality: Spearman's correlation of cosines with human scores, of both encoders.

    bash tests/run.sh tests/test_distillation.py  # installs all, and fetches model2vec into build/
    mirror-rt export all-MiniLM-L6-v2 --out bundle
    mirror-rt distill bundle --words en --out static
    python benchmarks/encode/static.py bundle static --data DATA

With `--only quality` no time is taken, and with `--only speed` no data is needed.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mirror_rt import Encoder
from mirror_rt.evaluation.statistics import spearman

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "build" / "model2vec"))
SETS = {"Multi-SimLex": "multisimlex/{}.tsv", "STS-B dev": "sts/stsb-{}-dev.tsv",
        "STS-B test": "sts/stsb-{}-test.tsv"}  # fmt: skip


def read(path: Path) -> tuple[list[str], list[str], list[float]]:
    """Read the last three columns of a TSV: two texts and a score."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [row[-3] for row in rows], [row[-2] for row in rows], [float(row[-1]) for row in rows]


def quality(encoders: dict[str, Encoder], data: Path, languages: list[str]) -> None:
    """Print the correlation of each encoder, and its ratio to that of the first."""
    for language in languages:
        for name, pattern in SETS.items():
            if not (path := data / pattern.format(language)).is_file():
                continue
            first, second, scores = read(path)
            found = {}
            for label, encoder in encoders.items():
                # A text of unknown tokens alone gets zeros: its cosine is 0, as for the peers.
                a, b = (encoder.encode(texts, errors="zero") for texts in (first, second))
                found[label] = spearman((a * b).sum(axis=1), np.array(scores))
            base = next(iter(found.values()))
            shown = ", ".join(f"{label} {rho:.4f} ({rho / base:.3f})"
                              for label, rho in found.items())  # fmt: skip
            print(f"{name} {language}: {shown}", flush=True)


def contenders(bundle: Path, static: Path) -> dict[str, Callable[[list[str]], object]]:
    """Return a function that encodes texts, by name."""
    import model2vec
    from sentence_transformers import SentenceTransformer

    peer = model2vec.StaticModel.from_pretrained(static)
    torch = SentenceTransformer(str(static), device="cpu")
    ours, encoder = Encoder.load(static), Encoder.load(bundle)
    return {
        "mirror-rt static": ours.encode,
        "model2vec": lambda texts: peer.encode(texts, max_length=None),
        "StaticEmbedding": lambda texts: torch.encode(texts, batch_size=1024,
                                                      show_progress_bar=False),
        "encoder": encoder.encode,
    }  # fmt: skip


def speed(bundle: Path, static: Path, texts: list[str], rounds: int) -> None:
    """Print the texts per second of each contender, and the ratio to ours in the same round."""
    found: dict[str, list[tuple[float, float]]] = {}
    encodes = contenders(bundle, static)
    for number in range(rounds + 1):  # the first is not counted
        order = list(encodes.items())
        for name, encode in order if number % 2 else order[::-1]:
            given = texts[: len(texts) // 20] if name == "encoder" else texts
            clock, processor = time.perf_counter(), time.process_time()
            encode(given)
            spent = time.perf_counter() - clock, time.process_time() - processor
            if number:
                rates = len(given) / spent[0], len(given) / spent[1]
                found.setdefault(name, []).append(rates)
    ours = found["mirror-rt static"]
    for name, rates in found.items():
        for i, what in enumerate(("clock", "processor time")):
            ratio = statistics.median(a[i] / b[i] for a, b in zip(ours, rates, strict=True))
            rate = statistics.median(one[i] for one in rates)
            print(f"{name}, {what}: {rate:,.0f} texts/s; ours {ratio:.2f} times", flush=True)


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("static", type=Path)
    parser.add_argument("--data", type=Path, help="folder with multisimlex/ and sts/")
    parser.add_argument("--lang", default="en", help="languages, joined by commas")
    parser.add_argument("--only", choices=["speed", "quality"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=Path, help="a text a line; by default STS-B's, en")
    options = parser.parse_args()
    languages = options.lang.split(",")
    if options.only != "speed":
        encoders = {"encoder": Encoder.load(options.bundle), "static": Encoder.load(options.static)}
        print(json.dumps(encoders["static"].manifest.training))
        quality(encoders, options.data, languages)
    if options.only != "quality":
        if options.texts:
            texts = options.texts.read_text(encoding="utf-8").splitlines()
        else:
            first, second, _ = read(options.data / SETS["STS-B dev"].format(languages[0]))
            texts = first + second
        texts = [text for text in (texts * (8000 // len(texts) + 1))[:8000] if text.strip()]
        speed(options.bundle, options.static, texts, options.rounds)


if __name__ == "__main__":
    main()
