"""Check the inputs of a request: one or several texts, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mirror_rt.pipeline.options import OnTooLong
from mirror_rt.server.admission.problems import Problem, too_large, unusable
from mirror_rt.server.http.schemas import Inputs
from mirror_rt.server.models.service import Items


def too_long(choice: OnTooLong, truncate: bool | None, direction: str | None) -> OnTooLong:
    """Choose how long inputs are treated, by the server's choice and the fields of a request."""
    if truncate is not None:
        choice = "truncate" if truncate else "error"
    left = choice == "truncate" and direction in ("Left", "left")
    return "truncate-left" if left else choice


def checked(inputs: Inputs | list[str], name: str, most: int, max_length: int) -> Items:
    """Return the items in the field `name`: at most `most` texts or lists of token ids."""
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
        raise unusable(name, "expected texts, or token ids, not both")
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
        raise too_large(name, f"{len(items)} items, and at most {most} are accepted")


def _empty(name: str, why: str = "it is empty") -> Problem:
    return Problem(400, f"{name}: {why}", "empty", name)


def check_texts(texts: Sequence[str], name: str, first: int = 0) -> None:
    """Raise Problem 400 for a text without a word; `first` is the number of the first one."""
    for i, text in enumerate(texts, first):
        if not text or text.isspace():
            raise _empty(name, f"item {i} is {'only white space' if text else 'empty'}")


def check_lengths(texts: list[str], name: str, most: int) -> None:
    """Raise Problem 413 for a text of more than `most` characters."""
    for i, text in enumerate(texts):
        if len(text) > most:
            why = f"item {i} has {len(text)} characters, and at most {most} are accepted"
            raise Problem(413, f"{name}: {why}", "too_long", name)


def _check_ids(sequences: list[list[int]], name: str, max_length: int) -> None:
    for i, ids in enumerate(sequences):
        if not ids:
            raise _empty(name, f"item {i} is empty")
        if len(ids) > max_length:
            why = f"item {i} has {len(ids)} token ids, and the model takes {max_length}"
            raise Problem(413, f"{name}: {why}", "too_long", name)
