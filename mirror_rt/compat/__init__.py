"""Offer the classes of sentence-transformers and fastembed over an `Encoder`, with their habits.

A program changes one line, its import, and keeps its calls:

>>> from mirror_rt.compat import SentenceTransformer  # or TextEmbedding
>>> SentenceTransformer("bundle").encode(["a text", "another"]).shape
(2, 384)

What these classes cannot do here is an error that says what to write instead.
"""

from mirror_rt.compat import util
from mirror_rt.compat.sentence_transformer import SentenceTransformer
from mirror_rt.compat.text_embedding import TextEmbedding
from mirror_rt.compat.util import SimilarityFunction

__all__ = ["SentenceTransformer", "SimilarityFunction", "TextEmbedding", "util"]
