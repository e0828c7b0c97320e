"""Score pairs of texts for the protocols of rerankers, and write the results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_rt.pipeline.options import OnTooLong
from mirror_rt.pipeline.results import EncodedTexts
from mirror_rt.reranking.late_scores import MAXSIM
from mirror_rt.server.admission.problems import Problem, unusable
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.inputs import check_number, check_texts, too_long
from mirror_rt.server.http.pieces import Scores
from mirror_rt.server.http.rerank_schemas import CutRequest, ScoreRequest
from mirror_rt.server.models.service import ModelFacts, ModelService
from mirror_rt.tokens.pairs import Pair


async def score_texts(
    call: Call, queries: Sequence[str], texts: Sequence[str], name: str, cut: str,
    most_tokens: int | None = None,
) -> EncodedTexts:  # fmt: skip
    """Check the texts in the field `name`, and score each, or its first tokens.

    There is one query, or one for each text.
    """
    if len(call.service.facts.labels) != 1:
        why = f"{call.service.model.name} gives several scores, which have no order: ask /predict"
        raise Problem(422, why, "wrong_model", "model")
    check_number(texts, name, call.config.max_items)
    check_texts(queries, "query")
    check_texts(texts, name)
    items = [Pair(queries[min(i, len(queries) - 1)], text) for i, text in enumerate(texts)]
    return await score_items(call, items, cut, most_tokens)


async def score_items(
    call: Call, items: list[Pair], cut: str, most_tokens: int | None = None
) -> EncodedTexts:
    """Score texts or pairs, which are cut, or refused where they are too long (`cut`)."""
    call.exchange.texts = len(items)
    shorten = None if most_tokens is None else partial(_shorten, call.service, most_tokens)
    return await call.encode(items, shorten, on_too_long=cast(Any, cut))


def as_items(inputs: Sequence[str | list[str]]) -> list[Pair]:
    """Check the texts and pairs in the field `inputs`."""
    items = []
    for i, given in enumerate(inputs):
        texts = [given] if isinstance(given, str) else given
        if not 1 <= len(texts) <= 2:
            raise unusable("inputs", f"item {i} has {len(texts)} texts, expected one or two")
        check_texts(texts, "inputs", i)
        items.append(Pair(texts[0], texts[1] if len(texts) > 1 else None))
    return items


def _shorten(service: ModelService, most: int, pairs: list[Pair]) -> list[Pair]:
    """Cut the documents of pairs to their first tokens."""
    tokenizer = service.loaded.pipeline.tokenizer

    def cut(text: str) -> str:
        text = text[: tokenizer.clip_characters]
        if len(text) <= most:  # a token has a character at least
            return text
        pieces = tokenizer.pieces(text, special_tokens=False)
        return text[: pieces[most - 1].stop] if len(pieces) > most else text

    return [pair._replace(document=cut(cast(str, pair.document))) for pair in pairs]


def probabilities(
    encoded: EncodedTexts, facts: ModelFacts, *, raw: bool = False, function: str | None = None
) -> Scores:
    """Return the scores of logits [n, C]: probabilities, or the logits themselves.

    Those of late interaction, which are sums of cosines, stay as they are.
    """
    logits = encoded.embeddings.astype(np.float64)
    if raw or (facts.labels == MAXSIM and function is None):
        return logits
    default = "sigmoid" if logits.shape[1] == 1 else "softmax"
    return ACTIVATIONS[function or default](logits)


def cut_or_refuse(call: Call, request: ScoreRequest | CutRequest) -> str:
    """Choose whether pairs that are too long are cut, or refused."""
    choice: OnTooLong = call.config.on_too_long or (
        "truncate" if isinstance(request, ScoreRequest) else "error"
    )
    direction = getattr(request, "truncation_direction", None)
    return too_long("truncate" if choice == "chunk" else choice, request.truncate, direction)


def as_list(texts: str | list[str] | None) -> list[str]:
    """Return one text, or several, as a list."""
    return [texts] if isinstance(texts, str) else texts or []


def by_score(labels: Sequence[str], scores: Scores) -> list[dict[str, Any]]:
    """Return labels with their scores, the best first."""
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"label": labels[j], "score": scores[j]} for j in order]


def tail_of(call: Call, kind: str = "list") -> dict[str, Any]:
    """Return the fields of an answer besides its results."""
    own = {"id": call.exchange.request_id, "model": call.service.model.name}
    return own | {"object": kind, "usage": call.usage()}
