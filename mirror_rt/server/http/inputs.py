"""Check and encode the inputs of a request: one or several texts, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mirror_rt.pipeline.options import EncodeKeywords, OnTooLong
from mirror_rt.pipeline.pipeline import EncodedTexts
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.exchange import Exchange
from mirror_rt.server.http.schemas import Inputs, VectorOptions
from mirror_rt.server.models.service import Items, ModelService


async def encode(
    inputs: Inputs | list[str],
    name: str,
    service: ModelService,
    exchange: Exchange,
    options: EncodeKeywords,
) -> EncodedTexts:
    """Check the inputs in the field `name` and encode them; count texts and tokens for the log."""
    items = items_of(inputs, name, service, exchange)
    timeout = exchange.timeout(service.config.timeout)
    encoded = await service.encode(items, timeout, exchange.times, **options)
    exchange.tokens = sum(encoded.token_counts.tolist())
    return encoded


def options_of(request: VectorOptions, service: ModelService) -> EncodeKeywords:
    """Return the options of `Encoder.encode` that a request gives."""
    name = request.prompt_name
    if name is None and request.prompt is None and request.input_type is not None:
        names = QUERY_NAMES if "query" in request.input_type else DOCUMENT_NAMES
        name = service.encoder.prompts.first_of(names)
    return {
        "truncate_dim": request.dimensions or None,
        "normalize_embeddings": request.normalize,
        "on_too_long": request.on_too_long or service.config.on_too_long or "error",
        "prompt_name": name,
        "prompt": request.prompt,
    }


def too_long(choice: OnTooLong, truncate: bool | None, direction: str | None) -> OnTooLong:
    """Return what becomes of long inputs, by the server's choice and the fields of a request."""
    if truncate is not None:
        choice = "truncate" if truncate else "error"
    left = choice == "truncate" and direction in ("Left", "left")
    return "truncate-left" if left else choice


def items_of(
    inputs: Inputs | list[str], name: str, service: ModelService, exchange: Exchange
) -> Items:
    """Return the items in the field `name` of a request, and count them for the log."""
    items = _checked(inputs, name, service.config.max_items, service.facts.max_length)
    exchange.texts = len(items)
    return items


def _checked(inputs: Inputs | list[str], name: str, most: int, max_length: int) -> Items:
    if isinstance(inputs, str):
        check_texts([inputs], name)
        return [inputs]
    if not inputs:
        raise _empty(name)
    # The number of items is checked first, because everything below looks at each of them.
    if type(inputs[0]) is int:
        _check_ids([cast("list[int]", inputs)], name, max_length)
    else:
        check_number(inputs, name, most)
    kinds = {type(item) for item in inputs}
    if len(kinds) > 1:
        raise Problem(422, f"{name}: expected texts, or token ids, not both", "invalid_value", name)
    if kinds == {int}:
        return [cast("list[int]", inputs)]
    if kinds == {str}:
        check_texts(cast("list[str]", inputs), name)
    else:
        _check_ids(cast("list[list[int]]", inputs), name, max_length)
    return cast("Items", inputs)


def check_number(items: Sequence[object], name: str, most: int) -> None:
    """Raise Problem 400 for no items, 413 for more than `most`."""
    if not items:
        raise _empty(name)
    if len(items) > most:
        raise Problem(413, f"{name}: {len(items)} items, and at most {most} are accepted",
                      "too_large", name)  # fmt: skip


def _empty(name: str) -> Problem:
    return Problem(400, f"{name}: it is empty", "empty", name)


def check_texts(texts: Sequence[str], name: str, first: int = 0) -> None:
    """Raise Problem 400 for a text without a word; `first` is the number of the first one."""
    for i, text in enumerate(texts, first):
        if not text or text.isspace():
            what = "is empty" if not text else "is only white space"
            raise Problem(400, f"{name}: item {i} {what}", "empty", name)


def check_lengths(texts: list[str], name: str, most: int) -> None:
    """Raise Problem 413 for a text of more than `most` characters."""
    for i, text in enumerate(texts):
        if len(text) > most:
            raise Problem(413, f"{name}: item {i} has {len(text)} characters, and at most {most} "
                          "are accepted", "too_long", name)  # fmt: skip


def _check_ids(sequences: list[list[int]], name: str, max_length: int) -> None:
    for i, ids in enumerate(sequences):
        if not ids:
            raise Problem(400, f"{name}: item {i} is empty", "empty", name)
        if len(ids) > max_length:
            raise Problem(413, f"{name}: item {i} has {len(ids)} token ids, and the model takes "
                          f"{max_length}", "too_long", name)  # fmt: skip
