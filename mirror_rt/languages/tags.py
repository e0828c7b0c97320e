"""Language tags by BCP 47 (RFC 5646), as far as they are needed to choose a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from mirror_rt.errors import ConfigError

T = TypeVar("T")

_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
# Deprecated primary subtags and their preferred values, from the IANA registry.
_PREFERRED = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro"}


def normalize_tag(tag: str) -> str:
    """Write a tag as RFC 5646 recommends: `PT_br` becomes `pt-BR`, `zh-hant` `zh-Hant`.

    Raises:
        ConfigError: it does not have the form of a tag.
    """
    text = tag.strip().replace("_", "-") if isinstance(tag, str) else ""
    if not _TAG.fullmatch(text):
        raise ConfigError(f"{tag!r} is not a language tag: expected 'fr' or 'pt-BR', for example")
    first, *rest = text.lower().split("-")
    parts, in_extension = [_PREFERRED.get(first, first)], False
    for subtag in rest:
        in_extension = in_extension or len(subtag) == 1
        parts.append(subtag if in_extension else _with_case(subtag))
    return "-".join(parts)


def lookup_chain(tag: str) -> list[str]:
    """Return a tag and the tags to fall back to, by the lookup of RFC 4647, section 3.4.

    `zh-Hant-TW` gives `zh-Hant-TW`, `zh-Hant`, `zh`: each time the last subtag is removed, and
    with it a single letter before it.

    Raises:
        ConfigError: it does not have the form of a tag.
    """
    parts = normalize_tag(tag).split("-")
    chain = []
    while parts:
        chain.append("-".join(parts))
        parts.pop()
        if parts and len(parts[-1]) == 1:
            parts.pop()
    return chain


def find_language(tag: str, available: Mapping[str, T]) -> T | None:
    """Return the value for a language, or for a more general one; None if there is none.

    Args:
        tag: a language tag, in any spelling; `iw` means `he`, and `pt-BR` falls back to `pt`.
        available: values by language tag, spelled as `normalize_tag` does.

    Raises:
        ConfigError: `tag` does not have the form of a tag.
    """
    return next((available[t] for t in lookup_chain(tag) if t in available), None)


def _with_case(subtag: str) -> str:
    if len(subtag) == 4 and subtag.isalpha():
        return subtag.title()
    return subtag.upper() if len(subtag) == 2 else subtag
