"""Check the `input` of a request: one or several texts, or one or several lists of token ids."""

from __future__ import annotations

from typing import cast

from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.http.schemas import Inputs
from mirror_rt.server.models.service import Items

__all__ = ["check_lengths", "check_texts", "items_of"]


def items_of(inputs: Inputs, *, name: str, most: int, max_length: int) -> Items:
    """Return the items of a request.

    Args:
        inputs: as the client sent them.
        name: name of the field.
        most: most items of a request.
        max_length: most token ids of an item.

    Raises:
        Problem: 400 for no items or an empty one, 413 for too many or too long ones, 422 for a
            mixture of texts and token ids.
    """
    if isinstance(inputs, str):
        check_texts([inputs], name)
        return [inputs]
    if not inputs:
        raise Problem(400, f"{name}: it is empty", "empty", name)
    # The number of items is checked first, because everything below looks at each of them.
    if type(inputs[0]) is int:
        _check_ids([cast("list[int]", inputs)], name, max_length)
    elif len(inputs) > most:
        raise Problem(413, f"{name}: {len(inputs)} items, and at most {most} are accepted",
                      "too_large", name)  # fmt: skip
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


def check_texts(texts: list[str], name: str) -> None:
    """Raise Problem 400 for a text that is empty or only white space."""
    for i, text in enumerate(texts):
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
