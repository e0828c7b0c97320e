"""Tune one encoder for all languages of wordfreq, and try each of them through a server.

    python benchmarks/tuning/joint_languages.py --base MODEL --work FOLDER [options of tune]

The commands of the product do the work: `tune --lang all --joint --installed --resume`, with what
thesauri and dictionaries the system has, and `export` of the result and of the base model. What
FOLDER already has is kept. Each bundle is then served in a process of its own. The client asks for
the same texts, the 100 most frequent words of each language; the table has the languages that
were answered, and the resident memory of the server after that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from serve.ratios import Server

from mirror_rt import Client
from mirror_rt.io.tables import markdown_table
from mirror_train.data.strings import listed_languages, word_list

TEXTS = 100
LIMIT = 1.2  # times the memory of the base model


def command(*arguments):
    """Run `mirror-rt`."""
    subprocess.run([sys.executable, "-m", "mirror_rt.cli", *map(str, arguments)], check=True)


def export(model, out, *options):
    """Export a model once."""
    if not out.exists():
        command("export", model, "--out", out, "--precision", "fp32", *options)
    return out


def serve(bundle, texts):
    """Return the languages whose texts were answered, and the server's memory after that."""
    server = Server(str(bundle), "fp32", "cpu")
    answered = []
    try:
        with Client(f"http://127.0.0.1:{server.port}") as client:
            for tag, words in texts.items():
                vectors = client.encode(words)
                if len(vectors) == len(words) and np.isfinite(vectors).all():
                    answered.append(tag)
        return answered, server.memory()
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--pooling", default="mean", help="of the base model (default: mean)")
    parser.add_argument("--work", required=True, type=Path)
    arguments, options = parser.parse_known_args()
    tuned = arguments.work / "tuned"
    if not tuned.exists():
        command(*("tune", arguments.base, "--lang", "all", "--joint", "--installed", "--resume"),
                *("--out", tuned), *options)  # fmt: skip
    texts = {tag: word_list(tag, top=TEXTS).first for tag in listed_languages()}
    base = export(arguments.base, arguments.work / "base", "--pooling", arguments.pooling)
    found = {
        "base": serve(base, texts),
        "joint": serve(export(tuned, arguments.work / "joint"), texts),
    }
    rows = [[name, f"{len(answered)} of {len(texts)}", f"{size:.0f}"]
            for name, (answered, size) in found.items()]  # fmt: skip
    print(markdown_table(["served", "languages answered", "memory, MB"], rows))
    ratio = found["joint"][1] / found["base"][1]
    print(f"memory: {ratio:.2f} x the base model's (at most {LIMIT})")
    sys.exit(int(ratio > LIMIT or len(found["joint"][0]) < len(texts)))


if __name__ == "__main__":
    main()
