"""Score pairs by a late-interaction model in the place of a cross-encoder.

A row has the tokens of the query and then those of the document, as those of type 1; its one logit
is their MaxSim. So all that runs a cross-encoder runs such a model. Each text of a batch is encoded
once, and a query again in the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.late_interaction.projection import TokenModel
from mirror_rt.late_interaction.token_encoder import TokenEncoder
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens
from mirror_rt.tokens.pairs import Pair, why_invalid_pair
from mirror_rt.tokens.sides import SideTokenizer
from mirror_rt.tokens.tokenization import TokenizedTexts
from mirror_rt.vectors.maxsim import maxsim

MAXSIM = ("maxsim",)  # the labels of such a model
Ids = npt.NDArray[np.int32]


class LatePairs:
    """A tokenizer of pairs, by those of queries and documents, each of which is cut by itself.

    `prompts` are put before both by default. Everything else is as of documents.
    """

    def __init__(
        self, query: SideTokenizer, document: SideTokenizer, prompts: tuple[str, str] = ("", "")
    ) -> None:
        self._query, self._document, self._prompts = query, document, prompts
        self.max_length = query.max_length + document.max_length
        self.special_tokens = query.special_tokens + document.special_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._document, name)

    def find_invalid(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return index -> reason for each input that is no pair of two texts."""
        alone = {i for i, one in enumerate(inputs) if isinstance(one, Pair) and not one.document}
        reasons = {i: why_invalid_pair(one) for i, one in enumerate(inputs)}
        return dict.fromkeys(alone, "the document is missing") | {
            i: reason for i, reason in reasons.items() if reason
        }

    def __call__(self, texts: Sequence[Pair], *, prompt: str = "") -> TokenizedTexts:
        """Tokenise valid pairs, with `prompt` before each query in place of the usual one."""
        asked = list(dict.fromkeys(pair.query for pair in texts))
        queries, cut = self._query(asked, prompt=prompt or self._prompts[0])
        ids = dict(zip(asked, _rows(queries), strict=True))
        cuts = dict(zip(asked, cut, strict=True))
        second = [str(pair.document) for pair in texts]
        documents, long = self._document(second, prompt=self._prompts[1])
        rows = [np.append(ids[pair.query], ~one)
                for pair, one in zip(texts, _rows(documents), strict=True)]  # fmt: skip
        truncated = [cuts[pair.query] or one for pair, one in zip(texts, long, strict=True)]
        return TokenizedTexts(RaggedTokens.from_arrays(rows), truncated)


class LateScores(PooledModel):
    """A late-interaction model that gives the MaxSim of pairs, float32 [rows, 1].

    Args:
        model: gives the vectors of tokens.
        encoder: has the tokenizers of both sides.

    Attributes:
        tokenizer: makes the rows.
    """

    def __init__(self, model: TokenModel, encoder: TokenEncoder) -> None:
        super().__init__(1, run_cost=model.run_cost, parallel_runs=model.parallel_runs)
        self._model, self._tokens = model, encoder.tokens
        sides = encoder.sides["query"], encoder.sides["document"]
        self._skipped = [one.skipped for one in sides]
        query, document = (
            encoder.prompts.choose(None, side.prompt)
            for side in (self._tokens.query, self._tokens.document)
        )
        self.tokenizer = LatePairs(*sides, (query, document))

    @classmethod
    def open(cls, encoder: BundleModel, described: ModelDescription) -> Self:
        """Make it of the opened encoder of a folder or a bundle."""
        model = TokenModel.open(encoder, described)
        return cls(model, TokenEncoder(described, model))

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: the score of each row."""
        ids, mask, types = batch
        coded = (ids ^ -types).astype(np.int32)
        least, pairs = self._tokens.query.least, []
        for row, length, first in zip(coded, mask.sum(axis=1), types.argmax(axis=1), strict=True):
            end = max(least, int(first))  # the fillers of a query may be of type 1, too
            pairs.append((row[:end].tobytes(), (~row[end:length]).tobytes()))
        queries, documents = (
            self._vectors({*texts}, skipped)
            for texts, skipped in zip(zip(*pairs, strict=True), self._skipped, strict=True)
        )
        scores = [maxsim([queries[a]], [documents[b]])[0] for a, b in pairs]
        sizes = [max(1, len(queries[a])) if self._tokens.mean else 1 for a, _ in pairs]
        return np.asarray(np.stack(scores) / np.array(sizes, np.float32)[:, None], np.float32)

    def _vectors(self, texts: set[bytes], skipped: Ids) -> dict[bytes, Vectors]:
        """Return the vectors of the tokens of distinct rows."""
        keys = sorted(texts)
        rows = [np.frombuffer(key, np.int32) for key in keys]
        batch = RaggedTokens.from_arrays(rows).pad(None, pad_id=self.tokenizer.pad_id)
        found = self._model.token_vectors(batch)
        return {
            key: one[: len(row)][~np.isin(np.maximum(row, ~row), skipped)]
            for key, row, one in zip(keys, rows, found, strict=True)
        }

    def prepare_concurrent_runs(self) -> int:
        """Prepare for concurrent runs; return the best number of runs in flight."""
        return self._model.prepare_concurrent_runs()


def _rows(tokens: RaggedTokens) -> list[Ids]:
    return [tokens.ids[begin:end] for begin, end in tokens.spans()]
