"""Make the table of docs/reference/families.md: all that runs of each family of encoders.

    python benchmarks/encode/families.py [FAMILY ...] [--rounds 5] [--write]
    python benchmarks/encode/families.py --shapes nomic_bert qwen3 [--rounds 5] [--work FOLDER]

Each family's real code, with random weights, is tuned, exported in every precision, and run from
its own files, as a bundle, and as the ONNX files that others publish; figures are differences from
sentence-transformers and transformers. Models of two layers serve for all of them but the speed,
which is that of six layers of 384 dimensions (12 heads, feed-forward part 1,536), on texts of 4 to
120 tokens: the native engine and onnxruntime take turns, and the median of the ratios is given.
It needs the extras `train`, `export` and `test`. --write puts the table into the document.

--shapes takes only speeds, of the layers of two models that are much downloaded: those of
nomic-embed-text-v1.5, and of Qwen3-Embedding-0.6B (7 of its 28), each with a small table of words.
FOLDER keeps the bundles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "support" / "models"), str(ROOT / "benchmarks")]

from helpers import write_between  # noqa: E402

from late_models import save_pylate  # noqa: E402
from mirror_export import ExportConfig, export_bundle  # noqa: E402
from mirror_rt import Encoder, Manifest, MultiVectorEncoder, Reranker, SparseEncoder  # noqa: E402
from mirror_rt.errors import MirrorError  # noqa: E402
from mirror_rt.io.tables import markdown_table  # noqa: E402
from mirror_train import TrainConfig, load_recipe, tune  # noqa: E402
from onnx_folders import publish  # noqa: E402
from tiny_models import SENTENCES, TINY, UNFUSED, make_model  # noqa: E402

DOCUMENT = ROOT / "docs/reference/families.md"
MARKERS = ("<!-- families -->\n", "<!-- /families -->\n")
ALL = TINY | UNFUSED
# Weights as small as trained ones. Deep models of larger weights are chaotic: export then finds no
# product that is near enough in int8, and all of the int8 graph stays in fp32.
_LIKE_TRAINED = {"initializer_range": 0.02}
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
         "intermediate_size": 1536, **_LIKE_TRAINED}  # fmt: skip
SHAPES: dict[str, dict[str, object]] = {
    "nomic_bert": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                   "intermediate_size": 3072, **_LIKE_TRAINED},
    "qwen3": {"hidden_size": 1024, "num_hidden_layers": 7, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
              **_LIKE_TRAINED},
}  # fmt: skip
REFUSED = "no"
PAIRS = [(SENTENCES[0], SENTENCES[1]), (SENTENCES[2], "word"), ("word", SENTENCES[5])]
TEXTS = [" ".join(SENTENCES[: 1 + i % 6]) for i in range(32)]
MANY = [f"{i} {TEXTS[i % 32]}" for i in range(128)]  # all of them run: none are equal
SHORT = [f"{i} {SENTENCES[0]}" for i in range(32)]
HEADER = ("family", "tune", "fp32", "bundle", "fp16", "int8", "pairs", "sparse", "late",
          "ONNX of others", "engine", "speed fp32", "speed int8")  # fmt: skip


def difference(found: np.ndarray, expected: np.ndarray) -> str:
    """Return the largest difference, of vectors in units of the longest."""
    return f"{np.abs(found - expected).max() / max(1, np.abs(expected).max()):.0e}"


def tuned(model: Path, folder: Path, pooling: str) -> str:
    """Tune on a few strings; return the difference of the engine from sentence-transformers."""
    out = folder / "tuned"
    words = sorted({word for text in SENTENCES for word in text.split()})
    tune(words, TrainConfig(model=str(model), out=out, recipe=load_recipe("word"), pooling=pooling))
    with Encoder.load(out) as encoder:
        expected = sentence_transformers.SentenceTransformer(str(out), device="cpu")
        return difference(encoder.encode(TEXTS), expected.encode(TEXTS, normalize_embeddings=True))


def from_weights(model: Path, pooling: str) -> str:
    """Encode from safetensors."""
    modules = [Transformer(str(model)), Pooling(32, pooling), Normalize()]
    expected = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    with Encoder.load(model, pooling=pooling) as encoder:
        return difference(encoder.encode(TEXTS), expected.encode(TEXTS))


def pairs(family: str, folder: Path) -> str:
    """Score pairs by the head of the sequence classification of transformers."""
    model = make_model(family, folder / "pairs", SENTENCES, labels=1)
    peer = AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        expected = [
            peer(**tokenizer(*pair, truncation=True, max_length=128, return_tensors="pt")).logits
            for pair in PAIRS
        ]
    with Reranker.load(model) as reranker:
        found = reranker.predict(PAIRS, activation="identity")
    return difference(found, np.concatenate(expected)[:, 0])


def sparse(family: str, folder: Path) -> str:
    """Weigh words by the head of a masked language model."""
    model = make_model(family, folder / "masked", SENTENCES, masked=True)
    peer = sentence_transformers.SparseEncoder(str(model), device="cpu")
    with SparseEncoder.load(model) as encoder:
        return difference(encoder.encode(TEXTS).toarray(), peer.encode(TEXTS).to_dense().numpy())


def late(model: Path, folder: Path) -> str:
    """Give the vectors of tokens of a folder that PyLate saved."""
    saved = save_pylate(model, folder / "late", query_length=12, document_length=60)
    peer = sentence_transformers.MultiVectorEncoder(str(saved), device="cpu")
    with MultiVectorEncoder.load(saved) as encoder:
        found = np.concatenate(encoder.encode_document(SENTENCES))
    expected = peer.encode_document(SENTENCES, convert_to_numpy=True)
    return difference(found, np.concatenate(expected))


def published(bundle: Path, folder: Path) -> str:
    """Encode by the graph alone, as others publish it."""
    with Encoder.load(bundle) as ours, Encoder.load(publish(bundle, folder / "onnx")) as theirs:
        return difference(theirs.encode(TEXTS), ours.encode(TEXTS))


def speed(bundle: Path, variant: str, rounds: int, *calls: Any) -> str:
    """Return the rate of calls of the native engine over that of onnxruntime, in turn."""
    ratios = []
    with (
        Encoder.load(bundle, variant=variant, providers="native") as ours,
        Encoder.load(bundle, variant=variant, providers="cpu") as theirs,
    ):
        for encoder in (ours, theirs):
            encoder.encode(TEXTS)
        for _ in range(rounds):
            times = []
            for encoder in (ours, theirs):
                began = time.perf_counter()
                for texts in calls or (MANY,):
                    encoder.encode(texts)
                times.append(time.perf_counter() - began)
            ratios.append(times[1] / times[0])
    return f"{statistics.median(ratios):.2f}"


def cell(make: Callable[[], str]) -> str:
    """Return what it returns, or the word for what is refused or does not exist."""
    try:
        return make()
    except (MirrorError, ValueError, KeyError) as error:
        print(f"    {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        return REFUSED


def export(model: Path, out: Path, pooling: Any, *precisions: Any) -> Manifest:
    return export_bundle(ExportConfig(str(model), out, pooling=pooling, precisions=precisions))


def row(family: str, folder: Path, rounds: int) -> list[str]:
    """Return a row of the table; without rounds, its cells on speed are empty."""
    pooling: Any = ALL[family].pooling
    model = make_model(family, folder / "model", SENTENCES)
    manifest = export(model, folder / "bundle", pooling, "fp32", "fp16", "int8")
    fp32, fp16, int8 = (manifest.variant(name).parity or {} for name in ("fp32", "fp16", "int8"))
    with Encoder.load(folder / "bundle") as encoder:
        engine = "native" if encoder.providers == ["native"] else "onnxruntime"
    speeds = ["", ""]
    if rounds and engine == "native":
        large = make_model(family, folder / "large", SENTENCES, config=sizes(family))
        export(large, folder / "wide", pooling, "fp32", "int8")
        speeds = [speed(folder / "wide", variant, rounds) for variant in ("fp32", "int8")]
    return [
        family,
        cell(partial(tuned, model, folder, pooling)),
        cell(partial(from_weights, model, pooling)),
        f"{fp32['max_difference']:.0e}",
        f"{fp16['mean_cosine']:.5f}",
        f"{int8['mean_cosine']:.4f}, {int8['min_cosine']:.4f}",
        cell(partial(pairs, family, folder)),
        cell(partial(sparse, family, folder)),
        cell(partial(late, model, folder)),
        cell(partial(published, folder / "bundle", folder)),
        engine,
        *speeds,
    ]


def sizes(family: str) -> dict[str, object]:
    """Return the sizes of the model whose speed is taken, by the names of the family."""
    layers = ["sliding_attention", "full_attention"] * 3
    special: dict[str, dict[str, object]] = {
        "distilbert": {"hidden_dim": 1536},
        "albert": {"embedding_size": 128},
        "gemma3_text": {"layer_types": layers},
    }
    heads = {"num_key_value_heads": 4, "head_dim": 32} if "head_dim" in ALL[family].config else {}
    return {**SIZES, **heads, **special.get(family, {})}


def shape(family: str, work: Path, rounds: int) -> list[str]:
    """Return the speeds of a real model's layers: of many texts, and of one short text."""
    bundle = work / family
    if not bundle.exists():
        with tempfile.TemporaryDirectory(dir=work) as folder:
            model = make_model(family, Path(folder), SENTENCES, config=SHAPES[family])
            export(model, bundle, ALL[family].pooling, "fp32", "int8")
    asked = [(variant, calls) for calls in ((), SHORT) for variant in ("fp32", "int8")]
    return [family, *(speed(bundle, variant, rounds, *calls) for variant, calls in asked)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="by default, all of them")
    parser.add_argument("--rounds", type=int, default=5, help="of the speed; 0 leaves it out")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="take only their speeds")
    parser.add_argument("--work", type=Path, help="keep the bundles of --shapes")
    arguments = parser.parse_args()
    rows = []
    if arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            work = arguments.work or Path(folder)
            rows = [shape(family, work, arguments.rounds) for family in arguments.shapes]
        print(markdown_table(("layers of", "fp32", "int8", "short, fp32", "short, int8"), rows))
        return
    for family in arguments.families or ALL:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(family, Path(folder), arguments.rounds))
        print(*rows[-1], sep="  ", file=sys.stderr)
    table = markdown_table(HEADER, rows) + "\n"
    if not arguments.write:
        print(table, end="")
        return
    write_between(DOCUMENT, MARKERS, table)


if __name__ == "__main__":
    main()
