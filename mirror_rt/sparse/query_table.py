"""Look up the weights of a query's words, without a model."""

from __future__ import annotations

import numpy as np

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.sparse_files import describe_queries, read_queries
from mirror_rt.sparse.vectors import SparseVector, Values
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import TextTokenizer


class QueryTable:
    """The weight of each word in a query that has it, float32 [V]."""

    def __init__(self, tokenizer: TextTokenizer, weights: Values) -> None:
        tokenizer.leave_out_special(unknown=False)
        tokenizer.check_ids(len(weights))
        self.tokenizer, self._weights = tokenizer, weights

    @classmethod
    def read(cls, described: ModelDescription) -> QueryTable | None:
        """Read the table of a sparse encoder; None if its queries go the way of documents."""
        words, queries = described.bundle.words, describe_queries(described)
        if words is None or queries is None:
            return None
        weights = read_queries(queries, words.size)
        tokenizer = TextTokenizer.from_file(
            queries.described.transformer / Layout.tokenizer,
            max_length=queries.max_length,
            pad_id=0,
            settings=queries.described.tokenizer,
        )
        return cls(tokenizer, weights)

    def weigh(self, tokens: RaggedTokens) -> list[SparseVector]:
        """Return the words of each row of tokens, each once, with their weights."""
        rows = [np.unique(tokens.ids[begin:end]) for begin, end in tokens.spans()]
        return [SparseVector(row, self._weights[row]) for row in rows]
