"""The inputs of `encode` and of the scheduler: one text, several texts, or token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from mirror_rt.errors import ConfigError, InvalidTextError

# One text, or many texts.
Texts = str | Iterable[str]
# The same, or the token ids of many texts as `BatchEncoder.tokenize` returns them.
Inputs = Texts | Iterable[list[int]]

# Names that columns of texts often have; of a table with none of them the first column is named.
_USUAL = ("text", "texts", "sentence", "sentences", "document", "content", "title")


def as_list(inputs: Any) -> list[Any]:
    """Return one text or an iterable as a list; raise InvalidTextError for anything else."""
    if isinstance(inputs, str):
        return [inputs]
    if reason := why_no_texts(inputs):
        raise InvalidTextError([(0, f"expected str or an iterable of str, got {reason}")])
    columns = getattr(inputs, "to_pylist", None)  # of an array of pyarrow, whose items are no str
    return list(inputs) if columns is None else list(columns())


def check_stream(inputs: Any, window: int) -> None:
    """Raise ConfigError if `inputs` cannot be a stream of texts, or the window is below 1."""
    if reason := "str" if isinstance(inputs, str) else why_no_texts(inputs):
        raise ConfigError(f"expected an iterable of str, got {reason}")
    if window < 1:
        raise ConfigError(field="window", expected="at least 1", value=window)


def why_no_texts(inputs: Any) -> str | None:
    """Say why `inputs` is no iterable of texts, by its type; None if it can be one.

    Iterating a table gives the names of its columns, or rows, which are no texts. Tables are known
    by their attributes, since the libraries that make them are not imported: pandas and polars
    (`columns`), pyarrow and Hugging Face datasets (`column_names`), numpy (`dtype.names`).
    """
    if type(inputs) is list:
        return None
    kind = type(inputs).__name__
    if isinstance(inputs, Mapping):
        return f"{kind}{_advice(list(inputs))}"
    names = getattr(getattr(inputs, "dtype", None), "names", None)
    for attribute in ("column_names", "columns"):  # pyarrow has both, and its columns are arrays
        names = getattr(inputs, attribute, None) if names is None else names
    if names is not None and not callable(names):
        # The scalars of pyarrow are no str, so its columns have to be converted.
        return f"{kind}{_advice(list(names), '.to_pylist()' * hasattr(inputs, 'to_pylist'))}"
    if (shape := getattr(inputs, "shape", None)) is not None and len(shape) != 1:
        return f"{kind} of shape {list(shape)}: pass a list of texts, or one column of it"
    if isinstance(inputs, Set):
        return f"{kind}, whose order is not known: pass a list"
    if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
        return kind
    return None


def _advice(columns: list[Any], convert: str = "") -> str:
    if not columns:
        return " without columns"
    shown = ", ".join(map(repr, columns[:5])) + ", ..." * (len(columns) > 5)
    column = next((name for name in _USUAL if name in columns), columns[0])
    return f" of the columns {shown}: pass one of them, such as inputs[{column!r}]{convert}"
