"""The fixtures with which the tests of sentence-transformers run against `mirror_rt.compat`.

They take the place of that library's tests/conftest.py; its files of tests stay as they are. What
they import from sentence_transformers is replaced here, before they are imported.
"""

import pytest
import sentence_transformers
import sentence_transformers.cross_encoder
import sentence_transformers.multi_vector_encoder
import sentence_transformers.sparse_encoder.model
import sentence_transformers.util as original
from sentence_transformers.util import quantization, retrieval, similarity, tensor

from mirror_rt.compat import (
    CrossEncoder,
    MultiVectorEncoder,
    SentenceTransformer,
    SparseEncoder,
    util,
)

for module in (original, quantization, retrieval, similarity, tensor):
    for name in util.__all__:
        if hasattr(module, name):
            setattr(module, name, getattr(util, name))
sentence_transformers.SentenceTransformer = SentenceTransformer
sentence_transformers.CrossEncoder = CrossEncoder
sentence_transformers.cross_encoder.CrossEncoder = CrossEncoder
sentence_transformers.SparseEncoder = SparseEncoder
sentence_transformers.sparse_encoder.SparseEncoder = SparseEncoder
sentence_transformers.sparse_encoder.model.SparseEncoder = SparseEncoder
sentence_transformers.MultiVectorEncoder = MultiVectorEncoder
sentence_transformers.multi_vector_encoder.MultiVectorEncoder = MultiVectorEncoder


def _model(name, kind=SentenceTransformer):
    return pytest.fixture(name=f"{name}_model")(lambda: kind(NAMES[name]))


@pytest.fixture
def clear_warning_once_cache():
    """Return a function without effect: no warnings are shown once."""
    return lambda: None


# The names are folders where the tests run, which hold the model that is there.
NAMES = {
    "stsb_bert_tiny": "sentence-transformers-testing/stsb-bert-tiny-safetensors",
    "paraphrase_distilroberta_base_v1": "sentence-transformers/all-MiniLM-L6-v2",
    "reranker_bert_tiny": "cross-encoder-testing/reranker-bert-tiny-gooaq-bce",
    "nli_minilm": "cross-encoder/nli-MiniLM2-L6-H768",
    "splade_bert_tiny": "sparse-encoder-testing/splade-bert-tiny-nq",
    "inference_free_splade_bert_tiny": "sparse-encoder-testing/inference-free-splade-bert-tiny-nq",
}
stsb_bert_tiny = _model("stsb_bert_tiny")
paraphrase_distilroberta_base_v1 = _model("paraphrase_distilroberta_base_v1")
reranker_bert_tiny = _model("reranker_bert_tiny", CrossEncoder)
nli_minilm = _model("nli_minilm", CrossEncoder)
splade_bert_tiny = _model("splade_bert_tiny", SparseEncoder)
inference_free_splade_bert_tiny = _model("inference_free_splade_bert_tiny", SparseEncoder)
