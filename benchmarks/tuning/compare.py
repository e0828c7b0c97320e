"""Compare tuning on words with sentence-transformers, with the same loss: time and scores.

    pip install 'sentence-transformers[train]'
    python benchmarks/tuning/compare.py --words DATA/words/en.txt --pairs DATA/multisimlex/en.tsv \
        --work DIR [--precision bf16]

The peer trains as its documentation describes SimCSE (pairs of a text with itself, dropout,
MultipleNegativesRankingLoss), with the hyper-parameters of the recipe `word`. Both sides compute in
--precision (bf16: autocast). Every contender is a process of its own; they take turns, `--rounds`
times. Seconds are given for training alone and for the whole process with loading and saving.
Scores are Spearman's correlation with the pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from mirror_rt.evaluation import evaluate_similarity, read_scored_pairs
from mirror_rt.io.tables import markdown_table
from mirror_train import TorchEncoder, load_recipe
from mirror_train.model.model_folder import DEFAULT_MODEL, resolve_model

PEER = "sentence-transformers"


def train_peer(words, out, seed, precision):
    """Train the peer as its users do; print the seconds of training."""
    import pyarrow as pa
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    recipe = load_recipe("word")
    model = SentenceTransformer(str(resolve_model(DEFAULT_MODEL)[0]), device="cpu")
    model.max_seq_length = recipe.max_length
    texts = [line for line in Path(words).read_text(encoding="utf-8").splitlines() if line.strip()]
    trainer = SentenceTransformerTrainer(
        model=model,
        args=Arguments(
            output_dir=str(out / "run"),
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=precision == "bf16",
            seed=seed,
        ),
        # The fingerprint is given, because datasets would pickle all of pyarrow to compute one.
        train_dataset=Dataset(pa.table({"anchor": texts, "positive": texts}), fingerprint="words"),
        loss=MultipleNegativesRankingLoss(model, scale=1 / recipe.temperature),
    )
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    model.save(str(out / "model"))
    print(json.dumps({"seconds": seconds}))


def run(contender, words, out, seed, precision):
    """Train in a process of its own; return seconds of training and process, and the model."""
    began = time.perf_counter()
    if contender == PEER:
        line = [sys.executable, __file__, "--peer", "--words", words, "--work", out]
        line += ["--precision", precision]
        done = subprocess.run(
            [*map(str, line), "--seed", str(seed)],
            check=True,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        seconds, model = json.loads(done.stdout.splitlines()[-1])["seconds"], out / "model"
    else:
        line = [sys.executable, "-m", "mirror_rt.cli", "tune", "--recipe", contender]
        line += ["--data", words, "--seed", seed, "--out", out / "model"]
        line += ["--precision", precision]
        subprocess.run([*map(str, line)], check=True, stdout=subprocess.DEVNULL)
        model = out / "model"
        seconds = json.loads((model / "mirror.json").read_text(encoding="utf-8"))["training"][
            "seconds"
        ]
    return {"train": seconds, "process": time.perf_counter() - began, "model": str(model)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", required=True, type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        train_peer(arguments.words, arguments.work, arguments.seed, arguments.precision)
        return
    if arguments.pairs is None:
        parser.error("--pairs is required")
    pairs = read_scored_pairs(arguments.pairs)
    contenders = (PEER, "word", "word-plus")
    found = {name: [] for name in contenders}
    for i in range(arguments.rounds):
        for name in contenders:
            out = arguments.work / f"{name}-{i}"
            out.mkdir(parents=True)
            result = run(name, arguments.words, out, arguments.seed + i, arguments.precision)
            encoder = TorchEncoder.load(result["model"])
            result["score"] = evaluate_similarity(encoder, pairs)
            found[name].append(result)
            print(json.dumps({"contender": name} | result), flush=True)
    rows = []
    peer = statistics.median(result["train"] for result in found[PEER])
    for name, results in found.items():
        train, process, score = (
            statistics.median(result[key] for result in results)
            for key in ("train", "process", "score")
        )
        figures = (f"{train:.1f}", f"{process:.1f}", f"{train / peer:.2f}", f"{score:.3f}")
        rows.append([name, *figures])
    header = ["contender", "training, s", "process, s", "ratio of training to the peer's", "score"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
