"""Measure what benchmarks/bulk/scale_model.py computes with, and the run that it must predict.

    build/ray/bin/python benchmarks/bulk/scale_calibration.py BUNDLE --rounds 5 --out scale.json

Needs the environment that benchmarks/bulk/ray_workers.py describes. In every round four commands
take turns, so that what else the machine does falls on all of them alike:

    shards    two `mirror-rt encode --shard` of one thread each at the same time, without Ray:
              the tokens a second of a worker while both processors work
    first     `--engine ray` over two blocks of one text: how long Ray and its actors need until the
              first part is there, and to end
    small     `--engine ray` over many blocks of one text: what a block costs whatever is in it
    run       `--engine ray` with two workers over other texts, in blocks of another size: this is
              the run to predict, and nothing of it enters the model

Once, the script measures what grows with the number of files, and the sizes of vectors in files.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from bulk.ray_workers import contenders, encode, run, steady, write_texts
from helpers import write_whole
from tokenizers import Tokenizer

PRECISIONS = ("float32", "float16", "int8", "ubinary")
RUN_TEXTS, RUN_BLOCK = 2000, 80
# The folders of texts: number, texts of a block, seed.
TEXTS = {"shards": (2000, 125, 0), "first": (2, 1, 2), "small": (100, 1, 3)}


def mean_tokens(bundle: str, folder: Path) -> float:
    """Return the tokens of a text, special tokens included."""
    tokenizer = Tokenizer.from_file(f"{bundle}/tokenizer.json")
    texts = pyarrow.parquet.read_table(folder, columns=["text"])["text"].to_pylist()
    return statistics.fmean(len(one.ids) for one in tokenizer.encode_batch(texts))


def one_round(options, folder: Path, turn: int) -> dict[str, dict]:
    """Run the four commands, in an order that changes with the round."""
    found = {}
    names = [*TEXTS, "run"]
    for name in names[turn % 4 :] + names[: turn % 4]:
        output = folder / f"vectors-{name}-{turn}"
        lines = contenders(options, folder / name, output)
        found[name] = run(lines["shards" if name == "shards" else "ray"], folder, output)
        print(f"round {turn + 1}: {name:<7} {found[name]['seconds']:.1f} s", flush=True)
    return found


def inputs_of(found: dict[str, dict], tokens: dict[str, float]) -> dict[str, float]:
    """Return the numbers of the model, from one round without its run."""
    first, small = found["first"], found["small"]
    block = 2 / steady(small["finished"], 2)  # two workers finish blocks of one text each
    return {
        "tokens_per_second": steady(found["shards"]["finished"], 2) / 2 * tokens["shards"],
        "seconds_of_a_block": block,
        "seconds_to_start": first["finished"][0][0] - block,
        "seconds_to_end": first["seconds"] - first["finished"][-1][0],
    }


def measured_rounds(options, folder: Path) -> dict:
    """Measure the inputs and the runs."""
    folders = TEXTS | {"run": (RUN_TEXTS, RUN_BLOCK, 1)}
    for one, (number, block, seed) in folders.items():
        write_texts(folder / one, number, block, seed)
    tokens = {one: mean_tokens(options.bundle, folder / one) for one in folders}
    rounds = [one_round(options, folder, turn) for turn in range(options.rounds)]
    return {
        "inputs": [inputs_of(one, tokens) for one in rounds],
        "run": {"texts": RUN_TEXTS, "block": RUN_BLOCK, "tokens": tokens["run"],
                "seconds": [one["run"]["seconds"] for one in rounds]},
    }  # fmt: skip


def tokenized_per_second(bundle: str, folder: Path) -> float:
    """Return the tokens that one thread makes out of texts in a second of processor time."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(f"{bundle}/tokenizer.json")
    texts = pyarrow.parquet.read_table(folder, columns=["text"])["text"].to_pylist()
    rates = []
    for _ in range(5):
        began = time.process_time()
        made = sum(len(one.ids) for one in tokenizer.encode_batch(texts))
        rates.append(made / (time.process_time() - began))
    return statistics.median(rates)


def files(folder: Path) -> dict[str, float]:
    """Return the processor time to find a small file, and the bytes of a block."""
    from mirror_rt.bulk.reading import find_blocks
    from mirror_rt.io.storage import Folder

    number = 2000
    for i in range(number):
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), folder / f"{i:05d}.parquet")
    began = time.process_time()
    find_blocks(str(folder), outside=Folder.at(f"{folder}/none"))
    seconds = time.process_time() - began
    tracemalloc.start()
    blocks = find_blocks(str(folder), outside=Folder.at(f"{folder}/none"))
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "seconds_to_find_a_file": seconds / number,
        "bytes_of_a_block": memory / number,
        "bytes_of_a_message": len(pickle.dumps(blocks[0])),
    }


def sizes(options, folder: Path) -> dict[str, float]:
    """Return the bytes of a vector in a Parquet file, by precision, and of the record of a part."""
    found = {}
    for precision in PRECISIONS:
        output = folder / precision
        line = encode(options.bundle, folder / "run" / "0000*.parquet", output, "--columns", "id",
                      "--precision", precision, "--providers", "native", "--variant",
                      "int8")  # fmt: skip
        run([line], folder, output)
        parts = list(output.rglob("*.parquet"))
        rows = sum(pyarrow.parquet.read_metadata(path).num_rows for path in parts)
        found[precision] = sum(path.stat().st_size for path in parts) / rows
        manifest = (output / "_manifest.json").stat().st_size
    return {"bytes_of_a_vector": found, "bytes_of_a_record": manifest / len(parts)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.bundle, options.shards = str(Path(options.bundle).resolve()), True
    from mirror_rt.diagnostics.benchmarking import machine_name

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = measured_rounds(options, folder)
        (folder / "files").mkdir()
        found = {
            "machine": machine_name(),
            **measured,
            "tokenized_per_second": tokenized_per_second(options.bundle, folder / "run"),
            **files(folder / "files"),
            **sizes(options, folder),
        }
    write_whole(options.out, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
