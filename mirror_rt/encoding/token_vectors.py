"""Run rows of tokens for the vectors of their tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.rows_to_run import RowsToRun
from mirror_rt.tokens.padding import RaggedTokens


def vectors_of_rows(
    pipeline: Pipeline, tokens: RaggedTokens, plan: EncodePlan
) -> list[npt.NDArray[np.float32]]:
    """Return float32 [tokens, H] of each row; equal ones run once."""
    vectors = [np.empty((0, 0), np.float32)] * len(tokens)
    work = RowsToRun(tokens)
    for batch in pipeline.batches(tokens, plan, work.rows):
        found, _ = pipeline.run_token_vectors(pipeline.pad(tokens, batch))
        for row, of_tokens in zip(batch.tolist(), found, strict=True):
            vectors[row] = of_tokens
    if work.first is not None:  # a caller may write to an array
        first = work.first.tolist()
        vectors = [vectors[i] if i == row else vectors[i].copy() for row, i in enumerate(first)]
    return vectors
