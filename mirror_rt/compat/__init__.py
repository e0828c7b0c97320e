"""Offer the classes of sentence-transformers and fastembed over encoders and rerankers.

A program changes one line, its import, and keeps its calls:

>>> from mirror_rt.compat import SentenceTransformer  # or another class of here
>>> SentenceTransformer("bundle").encode(["a text", "another"]).shape
(2, 384)

For all that these classes cannot do here, an error says what to write instead.
"""

from typing import NoReturn

from mirror_rt.compat import util
from mirror_rt.compat.cross_encoder import CrossEncoder
from mirror_rt.compat.late_interaction_text_embedding import LateInteractionTextEmbedding
from mirror_rt.compat.multi_vector_encoder import MultiVectorEncoder
from mirror_rt.compat.sentence_transformer import SentenceTransformer
from mirror_rt.compat.sparse_encoder import SparseEncoder
from mirror_rt.compat.sparse_text_embedding import SparseEmbedding, SparseTextEmbedding
from mirror_rt.compat.text_embedding import TextCrossEncoder, TextEmbedding
from mirror_rt.compat.util import SimilarityFunction

__all__ = [
    "CrossEncoder",
    "LateInteractionTextEmbedding",
    "MultiVectorEncoder",
    "SentenceTransformer",
    "SimilarityFunction",
    "SparseEmbedding",
    "SparseEncoder",
    "SparseTextEmbedding",
    "TextCrossEncoder",
    "TextEmbedding",
    "util",
]

_TUNE = "tune with `mirror-rt tune` or `mirror-rt train`"
_ELSEWHERE = {
    "StaticModel": "Encoder.load of mirror_rt runs static models; `mirror-rt distill` makes them",
    "ImageEmbedding": "models here read texts alone",
    **dict.fromkeys(
        ("InputExample", "SentenceTransformerTrainer", "CrossEncoderTrainer", "losses"), _TUNE
    ),
    "evaluation": "run `mirror-rt evaluate`",
}


def __getattr__(name: str) -> NoReturn:
    """Name the replacement of a class that is not here."""
    if name in _ELSEWHERE:
        raise ImportError(f"mirror_rt.compat has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
