"""From the language of a text to the bundle of a pack."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.languages.detection import Detector, language_detector
from mirror_rt.languages.tags import find_language, normalize_tag
from mirror_rt.tokens.tokenization import find_invalid

__all__ = ["AUTO", "Languages", "Router"]

AUTO = "auto"
# The language of a call, or of each of its texts; None for the pack's default.
Languages = str | Sequence[str | None] | None

logger = logging.getLogger("mirror_rt")


class Router:
    """The languages of a pack.

    Args:
        folder: of the pack.
        index: of the pack.
        detector: what `auto` asks; None for py3langid.

    Raises:
        BundleError: two bundles are of one language, or one of none that is a tag.
    """

    def __init__(self, folder: Path, index: PackIndex, detector: Detector | None = None) -> None:
        self._folder = folder
        self._default = index.default
        self.bundles = _bundles(folder, index)
        """Language tag -> name of its bundle."""
        self._detector = detector
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def find(self, tag: str) -> str | None:
        """Name the bundle of a language, or of a more general one (RFC 4647, lookup).

        Raises:
            ConfigError: it is not a language tag.
        """
        return find_language(tag, self.bundles)

    def route(self, lang: str | None) -> str:
        """Name the bundle for a language: what `find` finds, else the pack's default.

        Raises:
            ConfigError: it is not a language tag.
        """
        if lang is None:
            return self._default
        found = self.find(lang)
        if found is None and lang not in self._said:
            self._said.add(lang)
            logger.warning(
                "%s has no bundle for %r, its default %r is used (said once)",
                self._folder,
                lang,
                self._default,
            )
        return found or self._default

    def route_each(
        self, texts: list[Any], lang: Languages
    ) -> tuple[list[str], list[tuple[int, str]]]:
        """Name the bundle of each text, and say of which the text or the tag cannot be used.

        Raises:
            ConfigError: the tag of all texts is none, or there is not one for each.
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
        return names, sorted(invalid.items())

    def _detect(self, texts: list[Any], tags: list[Any], invalid: dict[int, str]) -> None:
        """Put what is detected in the place of `auto`; None for texts that are not valid."""
        asked = [i for i, tag in enumerate(tags) if tag == AUTO]
        rows = [i for i in asked if i not in invalid]
        for i in asked:
            tags[i] = None
        if rows:
            found = self._detect_with()([texts[i] for i in rows])
            for i, tag in zip(rows, found, strict=True):
                tags[i] = tag

    def _detect_with(self) -> Detector:
        with self._lock:
            if self._detector is None:
                self._detector = language_detector(list(self.bundles))
            return self._detector


def _bundles(folder: Path, index: PackIndex) -> dict[str, str]:
    bundles: dict[str, str] = {}
    for name, entry in index.bundles.items():
        if entry.language is None:
            continue
        try:
            tag = normalize_tag(entry.language)
        except ConfigError as error:
            raise BundleError(f"{folder}, language of the bundle {name!r}: {error}") from None
        if tag in bundles:
            raise BundleError(
                f"{folder} has two bundles of {tag}: {bundles[tag]} and {name}; export a pack with "
                "one for each language (one pack for each level, for example)"
            )
        bundles[tag] = name
    return bundles
