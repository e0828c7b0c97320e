"""Choose the bundle of a pack by the language of a text."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.languages.detection import Detector, language_detector
from mirror_rt.languages.tags import find_language, language_key, need_language
from mirror_rt.tokens.validity import find_invalid

AUTO = "auto"
# The language that a bundle may declare: a tag, or a name of that form, such as `biomedical`.
_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
# The language of all texts of a call, or of each text; None for the pack's default.
Languages = str | Sequence[str | None] | None

logger = logging.getLogger("mirror_rt")


class Router:
    """Finds the bundles of a pack by language; py3langid is the default detector for `auto`.

    `fallback` is the language whose bundle takes the texts of languages that the pack lacks; None
    stands for the one that the index declares, if any.
    """

    def __init__(
        self,
        folder: Path,
        index: PackIndex,
        detector: Detector | None = None,
        fallback: str | None = None,
    ) -> None:
        self.folder, self.index = folder, index
        self._default = index.default
        self.bundles = _bundles(folder, index)
        """Maps each language tag to the name of its bundle."""
        self._fallback = index.fallback
        if fallback is not None:
            self._fallback = need_language(fallback, self.bundles, f"fallback: {folder}")
        self._detector = detector
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def route(self, lang: str | None) -> str:
        """Return the name of the bundle of a language, or a more general one; None: the default."""
        if lang is None:
            return self._default
        found = need_language(lang, self.bundles, str(self.folder), self._fallback)
        if find_language(lang, self.bundles) is None and lang not in self._said:
            self._said.add(lang)
            logger.warning(
                "%s has no bundle for %r, its fallback %r is used (said once)",
                self.folder,
                lang,
                self._fallback,
            )
        return found

    def route_each(
        self, texts: list[Any], lang: Languages
    ) -> tuple[list[str], list[tuple[int, str]]]:
        """Return the bundle's name for each text, and (position, reason) of unusable texts.

        A text is unusable if it cannot be encoded, or if the pack does not have its own tag; it
        goes with the other texts, so that no bundle is loaded for it.
        """
        invalid = find_invalid(texts)
        if lang is None or (isinstance(lang, str) and lang != AUTO):
            return [self.route(lang)] * len(texts), list(invalid.items())
        tags: list[Any] = [lang] * len(texts) if isinstance(lang, str) else list(lang)
        if len(tags) != len(texts):
            raise ConfigError(
                f"lang has {len(tags)} tags for {len(texts)} texts: pass one for each, or one for "
                "all"
            )
        self._detect(texts, tags, invalid)
        names = [self._default] * len(texts)
        for i, tag in enumerate(tags):
            try:
                names[i] = self.route(tag)
            except ConfigError as error:
                invalid.setdefault(i, str(error))
        spare = next((name for i, name in enumerate(names) if i not in invalid), self._default)
        for i in invalid:
            names[i] = spare
        return names, sorted(invalid.items())

    def _detect(self, texts: list[Any], tags: list[Any], invalid: dict[int, str]) -> None:
        """Replace each tag `auto` by the detected language, or by None for an invalid text."""
        asked = [i for i, tag in enumerate(tags) if tag == AUTO]
        for i in asked:
            tags[i] = None
        if rows := [i for i in asked if i not in invalid]:
            with self._lock:
                if self._detector is None:
                    self._detector = language_detector(list(self.bundles))
            found = self._detector([texts[i] for i in rows])
            for i, tag in zip(rows, found, strict=True):
                tags[i] = tag


def _bundles(folder: Path, index: PackIndex) -> dict[str, str]:
    bundles: dict[str, str] = {}
    for name, entry in index.bundles.items():
        if entry.language is None:
            continue
        tag = language_key(entry.language)
        if not _NAME.fullmatch(tag):
            raise BundleError(
                f"{folder}, language of the bundle {name!r}: {entry.language!r} is not a language "
                "tag"
            )
        if tag in bundles:
            raise BundleError(
                f"{folder} has two bundles of {tag}: {bundles[tag]} and {name}; export a pack with "
                "one for each language (one pack for each level, for example)"
            )
        bundles[tag] = name
    return bundles
