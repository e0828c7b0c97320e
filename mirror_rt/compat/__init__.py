"""Offer the classes of sentence-transformers and fastembed over what a bundle loads to.

A program changes one line, its import, and keeps its calls:

>>> from mirror_rt.compat import SentenceTransformer  # or another class of here
>>> SentenceTransformer("bundle").encode(["a text", "another"]).shape
(2, 384)

What these classes cannot do here is an error that says what to write instead.
"""

from mirror_rt.compat import util
from mirror_rt.compat.cross_encoder import CrossEncoder
from mirror_rt.compat.sentence_transformer import SentenceTransformer
from mirror_rt.compat.text_embedding import TextEmbedding
from mirror_rt.compat.util import SimilarityFunction

__all__ = [
    "CrossEncoder",
    "SentenceTransformer",
    "SimilarityFunction",
    "TextEmbedding",
    "util",
]
