"""Find texts that cannot be encoded, and say why."""

from __future__ import annotations

from collections.abc import Iterable

from mirror_rt.errors import DataError, NotText


def why_invalid(text: object) -> str | None:
    """Return the reason why `text` cannot be encoded, or None if it can."""
    if not isinstance(text, str):
        return NotText.of(text)
    if not text or text.isspace():
        return "the string is empty" if not text else "the string is only white space"
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        return f"lone surrogate U+{code:04X} at character {error.start} is not valid Unicode"
    return None


def check_texts(where: str, *texts: str) -> None:
    """Raise a DataError that says where, if one of the texts cannot be encoded."""
    for text in texts:
        if reason := why_invalid(text):
            raise DataError(f"{where}: {reason}")


def find_invalid(texts: Iterable[object]) -> dict[int, str]:
    """Return index -> reason for each text that cannot be encoded."""
    return {i: reason for i, text in enumerate(texts) if (reason := why_invalid(text))}
