"""Guess the script that strings are written in from the Unicode names of their characters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

_ENOUGH = 0.5  # share of letters in the expected scripts; names are often in another script
UNSPACED = ("Hani", "Hira", "Kana", "Khmr", "Laoo", "Mymr", "Thai")  # no spaces between words
_LETTERS = 20_000  # number of letters to look at

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
    most, n = counts.most_common(1)[0]
    return (
        f"{source}: {n / total:.0%} of its letters are of the script {most}, but {language} is "
        f"written in {' or '.join(scripts)}: is it the right file?"
    )


def _letters(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(character for character in text if character.isalpha())
        if counts.total() >= _LETTERS:
            break
    return counts
