"""Daft: its embedding provider."""

import numpy as np
import pytest

pytest.importorskip("daft")

import daft
from daft.functions import embed_text

from mirror_rt.adapters.daft import MirrorProvider
from mirror_rt.errors import ConfigError
from rounding import ANY_BATCH


@pytest.mark.parametrize("dimensions", [None, 8])
def test_column(model, documents, encoder, dimensions):
    texts = [*documents, None, " "] * 20
    frame = daft.from_pydict({"id": list(range(len(texts))), "text": texts})
    vectors = embed_text(
        daft.col("text"), provider=MirrorProvider(), model=str(model), dimensions=dimensions,
        batch_size=50,
    )  # fmt: skip
    made = frame.with_column("embedding", vectors).sort("id").to_pydict()
    assert made["text"] == texts
    found = made["embedding"]
    assert [vector is None for vector in found] == ([False] * 6 + [True] * 2) * 20
    expected = encoder.encode(documents, truncate_dim=dimensions)
    np.testing.assert_allclose(np.array(found[:6]), expected, atol=ANY_BATCH)


def test_wrong_options_are_refused_at_once(model):
    with pytest.raises(ConfigError, match="takes no argument 'thread'"):
        MirrorProvider(model_kwargs={"thread": 1}).get_text_embedder(str(model))
    with pytest.raises(ConfigError, match="takes no argument 'batch'"):
        MirrorProvider().get_text_embedder(str(model), batch=3)
    with pytest.raises(ConfigError, match="got None"):
        MirrorProvider().get_text_embedder()
    with pytest.raises(ConfigError, match="must be float32"):
        MirrorProvider(encode_kwargs={"precision": "int8"})


def test_the_pipeline_of_the_guide(shown, model, documents, tmp_path):
    daft.from_pydict({"text": documents}).write_parquet(f"{tmp_path}/texts")
    there = {"all-MiniLM-L6-v2": model, "s3://texts/2026": f"{tmp_path}/texts",
             "s3://vectors/2026": f"{tmp_path}/vectors"}  # fmt: skip
    exec(shown("daft.read_parquet", there), {})
    made = daft.read_parquet(f"{tmp_path}/vectors").to_pydict()
    assert made["text"] == documents
    assert all(len(vector) > 1 for vector in made["embedding"])
