"""Detect the language of a text among those of a pack, with py3langid (extra `detect`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirror_rt.errors import ConfigError, require

# Maps texts to a language tag each, or None for a text whose language cannot be told.
Detector = Callable[[list[str]], Sequence[str | None]]


def language_detector(tags: Sequence[str]) -> Detector:
    """Make a detector that tells the given languages apart, by their primary subtags.

    Raises:
        MissingDependencyError: py3langid is not installed.
        ConfigError: py3langid knows fewer than two of the languages.
    """
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
