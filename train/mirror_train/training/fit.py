"""Notice strings that are not of the language named, and base models that do not know them."""

from __future__ import annotations

import logging
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirror_rt.languages.detection import language_shares
from mirror_rt.languages.tags import lookup_chain
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.base_models import LanguageTable, load_languages
from mirror_train.recipes.recipe import Level
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from mirror_train.model.pretrained import Pretrained

logger = logging.getLogger("mirror_train")

_SAMPLE = 1000  # strings
_ANY = "multilingual-e5-small"  # the model of the table for strings whose language is not known
# Above either, a tokenizer does not know the strings. On the 2,000 most frequent words of a
# language of wordfreq (2026-11-22), multilingual-e5-small cuts up to 1.7 tokens a word (Japanese:
# 2.1) and all-MiniLM-L6-v2 1.0 in English, 1.9 to 2.9 in other languages in Latin script (which
# rare words of English reach, too), and 3.4 or more in other scripts with spaces.
_MOST_UNKNOWN, _MOST_TOKENS = 0.02, 3.0
_LETTERS_A_WORD = 2  # where words are not separated by spaces
# A language is not the one named if so much of the text is of another, and so little of it.
_OTHER, _OWN = 0.6, 0.15
# Languages that a detector confuses, because they are hardly told apart without a sentence.
_ALIKE = ({"bs", "hr", "sh", "sr"}, {"da", "nb", "nn", "no"}, {"id", "ms"}, {"fil", "tl"})
_ENOUGH = 0.7  # share of letters in the expected scripts; names are often in another script
UNSPACED = ("Hani", "Hira", "Kana", "Khmr", "Laoo", "Mymr", "Thai")  # no spaces between words
_CHARACTERS = 200  # of a string, to look at
# Languages 1.3 % or more of whose letters, in words of wordfreq, are beyond ASCII (2026-11-27); and
# `_FEWEST_ACCENTS`, the least share of such letters in a text, unless its accents have been lost.
_ACCENTED = frozenset(
    {"ca", "cs", "da", "de", "es", "fi", "fr", "hu", "is", "lt", "lv", "nb", "pl", "pt", "ro", "sk",
     "sl", "sv", "tr", "vi"}
)  # fmt: skip
_FEWEST_ACCENTS, _ENOUGH_LETTERS = 0.001, 2000

# The ISO 15924 code for the first word of a letter's Unicode name.
_SCRIPTS = {
    "ARABIC": "Arab", "ARMENIAN": "Armn", "BENGALI": "Beng", "CJK": "Hani", "CYRILLIC": "Cyrl",
    "DEVANAGARI": "Deva", "ETHIOPIC": "Ethi", "FULLWIDTH": "Latn", "GEORGIAN": "Geor",
    "GREEK": "Grek", "GUJARATI": "Gujr", "GURMUKHI": "Guru", "HALFWIDTH": "Kana",
    "HANGUL": "Hang", "HEBREW": "Hebr", "HIRAGANA": "Hira", "KANNADA": "Knda",
    "KATAKANA": "Kana", "KATAKANA-HIRAGANA": "Kana", "KHMER": "Khmr", "LAO": "Laoo",
    "LATIN": "Latn", "MALAYALAM": "Mlym", "MONGOLIAN": "Mong", "MYANMAR": "Mymr",
    "ORIYA": "Orya", "SINHALA": "Sinh", "TAMIL": "Taml", "TELUGU": "Telu", "THAI": "Thai",
    "TIBETAN": "Tibt",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenFit:
    """Measures of how a tokenizer cuts strings."""

    unknown: float  # share of the tokens that are unknown or single bytes
    per_word: float  # tokens a word; two letters count as a word where there are no spaces

    @property
    def knows(self) -> bool:
        """Tell whether the tokenizer was made for such strings."""
        return self.unknown <= _MOST_UNKNOWN and self.per_word <= _MOST_TOKENS


def run_warnings(
    data: TrainingData, base: Pretrained, config: TrainConfig, table: LanguageTable
) -> list[str]:
    """Return the warnings of `string_warnings`, `base_warning` and the pooling for a run."""
    from mirror_train.training.pooling import choose_pooling  # which imports torch

    found = base_warning(base.hf_tokenizer, data, config.model, table, config.recipe.level)
    pooled = choose_pooling(base, config, table).warning
    return [*string_warnings(data, table), *(one for one in (found, pooled) if one is not None)]


def warn_of_run(data: TrainingData, base: Pretrained, config: TrainConfig) -> None:
    """Log the warnings of `run_warnings`, by the table that the package and the user have."""
    for warning in run_warnings(data, base, config, load_languages()):
        logger.warning("%s", warning)


def token_fit(tokenizer: Any, texts: Sequence[str]) -> TokenFit:
    """Measure how a tokenizer of transformers cuts some strings; they hold a letter at least."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    tokens = [
        token
        for encoding in encodings
        for token, kept in zip(encoding.tokens, encoding.attention_mask, strict=True)
        if kept  # some files of tokenizers pad
    ]
    strange = sum(
        token == tokenizer.unk_token or (token.startswith("<0x") and len(token) == 6)
        for token in tokens
    )
    scripts = letters_by_script(texts)
    unspaced = sum(scripts[one] for one in UNSPACED)
    words = sum(len(text.split()) for text in texts)
    if 2 * unspaced > scripts.total():
        words = unspaced // _LETTERS_A_WORD
    return TokenFit(strange / max(1, len(tokens)), len(tokens) / max(1, words))


def string_warnings(data: TrainingData, table: LanguageTable) -> list[str]:
    """Return warnings of strings in another script or another language than named.

    Where py3langid is not installed, letters beyond ASCII alone tell of another language.

    Nothing is said of strings without a language, or of a language that is not in the table.
    """
    row = _row(data.language, table)
    if data.language is None or row is None:
        return []
    texts = _sample(data)
    if found := script_warning(texts, data.language, row["scripts"], data.source):
        return [found]
    primary = data.language.split("-")[0]
    shares = language_shares(texts)
    if shares is None and primary in _ACCENTED:
        letters = _letters(texts)
        accented = sum(n for letter, n in letters.items() if not letter.isascii())
        if letters.total() >= _ENOUGH_LETTERS and accented < _FEWEST_ACCENTS * letters.total():
            return [
                f"{data.source}: {accented} of {letters.total():,} letters are beyond ASCII, which "
                f"is too few for {data.language!r}: is it the right file, with its accents?"
            ]
    if shares is None or primary not in shares:
        return []
    most = max(shares, key=shares.__getitem__)
    alike = most == primary or any({primary, most} <= group for group in _ALIKE)
    if alike or shares[most] < _OTHER or shares[primary] > _OWN:
        return []
    return [
        f"{data.source}: by py3langid {shares[most]:.0%} of it is {most!r}, but its language was "
        f"said to be {data.language!r}: is it the right file?"
    ]


def base_warning(
    tokenizer: Any, data: TrainingData, model: str, table: LanguageTable, level: Level
) -> str | None:
    """Return a warning that names a better base model, or None if this one knows the strings.

    Where the language of the strings is not said, py3langid is asked. The table says which
    languages the base model of that name is for, and which model to recommend at this level.
    """
    texts = _sample(data)
    if not letters_by_script(texts):
        return None
    language = data.language
    if language is None and (shares := language_shares(texts)) is not None:
        language = next((one for one, share in shares.items() if share >= _OTHER), None)
    known = table.base(model).languages
    fit = token_fit(tokenizer, texts)
    if not fit.knows:
        why = (
            f"cuts {data.source} into {fit.per_word:.1f} tokens a word, {fit.unknown:.0%} of them "
            "unknown or bytes, so it hardly knows the language or the script"
        )
    elif language is not None and known and not set(known) & set(lookup_chain(language)):
        why = f"is a model of {', '.join(known)}, and {data.source} is {language!r}"
    else:
        return None
    named = _row(language, table) is not None
    better = table.recipe(str(language), level).base if named else table.bases[_ANY]
    return f"{model} {why}: better is --model {better.name} ({better.model})"


def _row(language: str | None, table: LanguageTable) -> dict[str, Any] | None:
    tags = [] if language is None else lookup_chain(language)
    return next((table.languages[tag] for tag in tags if tag in table.languages), None)


def _sample(data: TrainingData) -> list[str]:
    """Return strings from the whole of the data, the same ones for the same data."""
    return random.Random(0).sample(data.first, min(len(data), _SAMPLE))


def letters_by_script(texts: Iterable[str]) -> Counter[str]:
    """Count the letters of texts by script (ISO 15924; `Zzzz` for a script that is not known)."""
    counts: Counter[str] = Counter()
    for character, n in _letters(texts).items():
        name = unicodedata.name(character, "").split(" ")[0]
        counts[_SCRIPTS.get(name, "Zzzz")] += n
    return counts


def script_warning(
    texts: Iterable[str], language: str, scripts: Sequence[str], source: str
) -> str | None:
    """Return a warning if most letters are not of a language's scripts (ISO 15924), else None.

    Nothing is said where the scripts are not known; `source` names the file in the warning.
    """
    counts = letters_by_script(texts)
    total = counts.total()
    if not scripts or not total or sum(counts[s] for s in scripts) >= _ENOUGH * total:
        return None
    others = Counter({one: n for one, n in counts.items() if one not in scripts})
    most, n = others.most_common(1)[0]
    return (
        f"{source}: {n / total:.0%} of its letters are of the script {most}, but {language} is "
        f"written in {' or '.join(scripts)}: is it the right file?"
    )


def _letters(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(filter(str.isalpha, text[:_CHARACTERS]))
    return counts
