"""Language tags by BCP 47 (RFC 5646), and the lookup by which all parts find a language."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, TypeVar

from mirror_rt.errors import ConfigError

T = TypeVar("T")

# RFC 5646 also allows primary subtags of 5 to 8 letters, but the IANA registry has none.
_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")
# Deprecated primary subtags and their preferred values, from the IANA registry.
_PREFERRED = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro"}
# Looking for a tag takes time that grows with the square of its length.
_LONGEST = 256
# CLDR's distances of languages: up to 10 for those written alike, up to 60 for related ones.
_SAME, _RELATED = 10, 60
_SHOWN = 40  # characters of a wrong tag in a message


def normalize_tag(tag: str) -> str:
    """Write a tag as RFC 5646 recommends: `PT_br` becomes `pt-BR`, `zh-hant` `zh-Hant`."""
    if (found := _normalized(tag)) is None:
        shown = tag[:_SHOWN] if isinstance(tag, str) else tag
        raise ConfigError(
            f"{shown!r} is not a language tag: expected 'fr' or 'pt-BR', for example"
            f"{did_you_mean(shown, _names())}"
        )
    return found


def language_key(language: str) -> str:
    """Return a tag as `normalize_tag` writes it, and any other name in lower case."""
    return _normalized(language) or language.strip().replace("_", "-").lower()


def lookup_chain(tag: str) -> list[str]:
    """Return a tag and the tags to fall back to, by the lookup of RFC 4647, section 3.4.

    `zh-Hant-TW` gives `zh-Hant-TW`, `zh-Hant`, `zh`: each time the last subtag is removed, and
    with it a single letter before it.
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

    A tag may have any spelling; `iw` means `he`, and `pt-BR` falls back to `pt`. A name that is no
    tag is found as it is. The values are `available` by `language_key`.
    """
    try:
        chain = lookup_chain(tag)
    except ConfigError:
        chain = [language_key(tag)] if isinstance(tag, str) else []
        if not available.keys() & chain:
            raise
    return next((available[t] for t in chain if t in available), None)


def need_language(tag: str, available: Mapping[str, T], owner: str, fallback: T | None = None) -> T:
    """Return the value for a language as `find_language` does; refuse one that is missing.

    The ConfigError lists the languages of `owner`, and suggests the tag for the English name of a
    language or for its code of three letters. A `fallback` stands in for every missing value.
    """
    if (found := find_language(tag, available)) is not None:
        return found
    if fallback is not None:
        return fallback
    has = f"it has {', '.join(available)}" if available else "it declares no language"
    raise ConfigError(f"{owner} has no {tag!r}{did_you_mean(tag, available)}; {has}")


def did_you_mean(text: str, tags: Iterable[str], names: Mapping[str, str] | None = None) -> str:
    """Return ` (did you mean fr?)` for the name or another code of one of `tags`; `` for no such.

    `names` has further names of the tags.
    """
    spellings: dict[str, str] = {}
    for tag in tags:
        own = () if names is None or tag not in names else (names[tag],)
        for spelling in (tag, *_names().get(tag.split("-")[0], ()), *own):
            spellings.setdefault(spelling.casefold(), tag)
    asked = str(text)[:_SHOWN].strip(" -_").casefold()
    if asked not in spellings:  # a misspelt code would be near to many others
        long = [spelling for spelling in spellings if len(spelling) > 3]
        asked = next(iter(difflib.get_close_matches(asked, long, n=1, cutoff=0.75)), "")
    found = spellings.get(asked)
    return "" if found is None or found == text else f" (did you mean {found}?)"


@functools.cache
def _names() -> dict[str, tuple[str, ...]]:
    """Return the codes of three letters and the English names of each language of ISO 639-1."""
    table = (resources.files(__package__) / "iso639.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in table.splitlines())
    return {code: tuple(names) for code, *names in rows}


def _normalized(tag: str) -> str | None:
    """Return a tag as RFC 5646 recommends; None if it does not have the form of one."""
    text = tag.strip().replace("_", "-") if isinstance(tag, str) else ""
    if len(text) > _LONGEST or not _TAG.fullmatch(text):
        return None
    first, *rest = text.lower().split("-")
    parts, in_extension = [_PREFERRED.get(first, first)], False
    for subtag in rest:
        in_extension = in_extension or len(subtag) == 1
        parts.append(subtag if in_extension else _with_case(subtag))
    return "-".join(parts)


def _with_case(subtag: str) -> str:
    if len(subtag) == 4 and subtag.isalpha():
        return subtag.title()
    return subtag.upper() if len(subtag) == 2 else subtag


def listed_language(wordfreq: Any, language: str) -> str:
    """Return the language of wordfreq that a tag means: `pt` for `pt-BR`, `sh` for `hr`.

    wordfreq's own matching is not used, because it gives English words for Albanian.
    """
    from langcodes import closest_match  # a dependency of wordfreq

    known = sorted(wordfreq.available_languages())
    try:
        nearest, distance = closest_match(language, known, _RELATED)
    except ValueError:  # not a tag
        nearest, distance = "und", _RELATED
    if distance <= _SAME or nearest == language.replace("_", "-").split("-")[0].lower():
        return str(nearest)
    if nearest == "und":
        where = f"there are {', '.join(known)}"
    else:
        where = f"the nearest that has one is {nearest!r}"
    near = did_you_mean(language, known)
    raise ConfigError(f"no word list for language {language!r}{near}; {where}")
