"""Detect the language of a text among those of a pack, with py3langid (extra `detect`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from mirror_rt.errors import ConfigError, require

# Maps texts to a language tag each, or None for a text whose language cannot be told.
Detector = Callable[[list[str]], Sequence[str | None]]
# Characters of a passage, since a word alone often fits several languages; and how many are enough.
_PASSAGE, _ENOUGH = 200, 5


def language_shares(texts: Sequence[str]) -> dict[str, float] | None:
    """Return the share of texts in each language that py3langid knows (ISO 639-1), by passages.

    Short texts are joined to passages. Return None where py3langid is not installed, or the texts
    have less than 1,000 characters.
    """
    if find_spec("py3langid") is None:
        return None
    passages, parts = [], list[str]()
    for text in texts:
        parts.append(text)
        if sum(map(len, parts)) >= _PASSAGE:
            passages.append(", ".join(parts))
            parts = []
    passages = [passage for passage in passages if any(map(str.isalpha, passage))]
    if len(passages) < _ENOUGH:
        return None
    langid = require("py3langid.langid", extra="detect", purpose="detecting languages")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    found = Counter(identifier.classify(passage)[0] for passage in passages)
    return {label: found[label] / len(passages) for label in identifier.labels}


def language_detector(tags: Sequence[str]) -> Detector:
    """Make a detector that tells the given languages apart, by their primary subtags."""
    langid = require("py3langid.langid", extra="detect", purpose="lang='auto'")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    wanted = {tag.split("-")[0]: tag for tag in reversed(tags)}
    known = [primary for primary in wanted if primary in identifier.labels]
    if len(known) < 2:
        raise ConfigError(
            f"lang='auto' needs two languages that py3langid can tell apart, and of "
            f"{', '.join(tags)} it knows {', '.join(known) or 'none'}: name the language, or pass "
            "a detector of your own"
        )
    identifier.set_languages(known)
    # Texts such as digits are equally likely in every language, and must get no tag.
    identifier.min_confidence = 1 / len(known) + 1e-4
    return lambda texts: [wanted.get(identifier.classify(text)[0]) for text in texts]
