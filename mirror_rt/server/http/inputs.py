"""The `input` of a request: texts or token ids, one or several, all of one kind."""

from __future__ import annotations

from typing import cast

from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.http.schemas import Inputs
from mirror_rt.server.models.service import Items

__all__ = ["check_texts", "items_of"]


def items_of(inputs: Inputs, *, name: str, most: int, max_length: int) -> Items:
    """Return the items of a request.

    Args:
        inputs: as the client sent them.
        name: of the field.
        most: items that a request may have.
        max_length: token ids that an item may have.

    Raises:
        Problem: 400 for no item or an empty one, 413 for too many or too long ones, 422 for a
            mixture.
    """
    if isinstance(inputs, str):
        check_texts([inputs], name)
        return [inputs]
    if not inputs:
        raise Problem(400, f"{name}: it is empty", "empty", name)
    kinds = {type(item) for item in inputs}
    if len(kinds) > 1:
        raise Problem(422, f"{name}: expected texts, or token ids, not both", "invalid_value", name)
    if kinds == {int}:  # one item
        inputs = [cast("list[int]", inputs)]
    if len(inputs) > most:
        raise Problem(413, f"{name}: {len(inputs)} items, and at most {most} are accepted",
                      "too_large", name)  # fmt: skip
    if kinds == {str}:
        check_texts(cast("list[str]", inputs), name)
    else:
        _check_ids(cast("list[list[int]]", inputs), name, max_length)
    return cast("Items", inputs)


def check_texts(texts: list[str], name: str) -> None:
    """Raise Problem 400 for a text of nothing but white space."""
    for i, text in enumerate(texts):
        if not text or text.isspace():
            what = "is empty" if not text else "is only white space"
            raise Problem(400, f"{name}: item {i} {what}", "empty", name)


def _check_ids(sequences: list[list[int]], name: str, max_length: int) -> None:
    for i, ids in enumerate(sequences):
        if not ids:
            raise Problem(400, f"{name}: item {i} is empty", "empty", name)
        if len(ids) > max_length:
            raise Problem(413, f"{name}: item {i} has {len(ids)} token ids, and the model takes "
                          f"{max_length}", "too_long", name)  # fmt: skip
