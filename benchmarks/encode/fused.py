"""Make the table of fused operators of encoder families in docs/reference/bundle.md.

Each family's real code, at tiny size (tests/support/models/tiny_models.py), is exported in every
precision and for every target. --write puts the table into the document, between its markers.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "support" / "models"), str(ROOT / "benchmarks")]

from helpers import write_between  # noqa: E402

from mirror_export import ExportConfig, export_bundle  # noqa: E402
from mirror_rt import Manifest  # noqa: E402
from mirror_rt.io.tables import markdown_table  # noqa: E402
from tiny_models import SENTENCES, TINY, make_model  # noqa: E402

DOCUMENT = ROOT / "docs/reference/bundle.md"
MARKERS = ("<!-- fused -->\n", "<!-- /fused -->\n")
HEADER = (
    "family",
    "Attention",
    "BiasGelu or FastGelu",
    "SkipLayer-Normalization",
    "EmbedLayer-Normalization",
    "padding-free for CUDA",
    "fp32: largest difference",
    "fp16: mean cosine",
    "int8: mean, worst cosine",
)
LABELS = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "data2vec-text": "data2vec",
    "ernie": "ERNIE",
    "distilbert": "DistilBERT",
    "albert": "ALBERT",
    "electra": "ELECTRA",
    "mpnet": "MPNet",
    "deberta-v2": "DeBERTa-v2, -v3",
    "modernbert": "ModernBERT",
    "roformer": "RoFormer",
    "rembert": "any other (RemBERT here)",
}
FUSED = (
    ("Attention", "MultiHeadAttention"),
    ("BiasGelu", "FastGelu"),
    ("SkipLayerNormalization",),
    ("EmbedLayerNormalization",),
)


def operators(manifest: Manifest) -> list[str]:
    """Return the counts of the fused operators, and whether there is a padding-free graph."""
    fused = manifest.variant("fp32").graph["fused"]
    counts = [sum(fused.get(name, 0) for name in names) for names in FUSED]
    packed = "PackedMultiHeadAttention" in manifest.variant("fp32-cuda").graph["fused"]
    return [str(count or "") for count in counts] + ["yes" if packed else ""]


def row(family: str, manifest: Manifest) -> list[str]:
    """Return a row of the table, from a bundle that has every variant."""
    fp32, fp16, int8 = (manifest.variant(name).parity or {} for name in ("fp32", "fp16", "int8"))
    return [
        LABELS[family],
        *operators(manifest),
        f"{fp32['max_difference']:.1e}",
        f"{fp16['mean_cosine']:.6f}",
        f"{int8['mean_cosine']:.4f}, {int8['min_cosine']:.4f}",
    ]


def export(family: str, folder: Path) -> Manifest:
    """Make a tiny model and export it in all variants."""
    model = make_model(family, folder / "model", SENTENCES)
    return export_bundle(
        ExportConfig(
            str(model),
            folder / "bundle",
            pooling=TINY[family].pooling,
            precisions=("fp32", "fp16", "int8"),
            targets=("cpu", "cuda"),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/reference/bundle.md"
    )
    arguments = parser.parse_args()
    rows = []
    for family in TINY:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(family, export(family, Path(folder))))
        print(*rows[-1], sep="  ", file=sys.stderr)
    table = markdown_table(HEADER, rows) + "\n"
    if not arguments.write:
        print(table, end="")
        return
    date = datetime.datetime.now(datetime.UTC).date()
    source = f"\n`python benchmarks/encode/fused.py --write`, models of two layers, {date}.\n"
    write_between(DOCUMENT, MARKERS, table + source)


if __name__ == "__main__":
    main()
