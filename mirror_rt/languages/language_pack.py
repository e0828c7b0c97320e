"""A loaded language pack: many bundles behind one `encode`, few of them in memory at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self, Unpack

from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.model_cache import CacheStatistics, ModelCache, checked_limit, memory_of
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.keywords import with_visible_options
from mirror_rt.languages.detection import Detector
from mirror_rt.languages.pack_encoder import PackEncoder
from mirror_rt.languages.routing import Router
from mirror_rt.languages.tags import need_language

logger = logging.getLogger("mirror_rt")


@with_visible_options(LoadOptions)
class LanguagePack(PackEncoder):
    """A loaded language pack: `LanguagePack.load(path).encode(texts, lang="fr")`.

    Bundles are loaded when a text needs them. If there is a limit of memory, the least recently
    used ones are closed once no call uses them. A pack is safe to use from several threads.
    """

    def __init__(
        self, router: Router, options: LoadOptions, memory_limit: float | None,
        pinned: Iterable[str], *, mixed_spaces: bool,
    ) -> None:  # fmt: skip
        self.folder, self.index, self._options = router.folder, router.index, options
        sizes = {name: self._bytes(name) for name in self.index.bundles}
        names = [need_language(tag, router.bundles, f"pinned: {self.folder}") for tag in pinned]
        limit = None if memory_limit is None else checked_limit(memory_limit, sizes, names)
        cache = ModelCache(self._open, sizes, limit=limit, pinned=names)
        super().__init__(router, cache, mixed_spaces=mixed_spaces)
        for name in names:
            with self._cache.lease(name):
                pass

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        memory_limit: float | None = None,
        pinned: Iterable[str] = (),
        detector: Detector | None = None,
        fallback: str | None = None,
        mixed_spaces: bool = False,
        **keywords: Unpack[LoadKeywords],
    ) -> LanguagePack:
        """Load the index of a pack, and the bundles that are pinned.

        Args:
            path: a folder written by `mirror-rt export` of several models.
            memory_limit: most bytes of the bundles that are loaded at a time; None for no limit.
                The size of a bundle is that of the files that its graph needs, with its
                tokenizer.json counted 17 times, since it takes that much memory.
            pinned: tags of languages that are loaded now and stay loaded.
            detector: function for `lang="auto"` that maps texts to a tag each, or None if there
                is none; py3langid (extra `detect`) by default.
            fallback: tag of the language whose bundle takes the texts of languages that the pack
                lacks; None for the fallback that the pack declares. Without one, such a language
                is refused.
            mixed_spaces: let one matrix have rows of several vector spaces, which must not be
                compared with one another.
            **keywords: the fields of `LoadOptions`, for every bundle. The files of a bundle are
                verified when it is loaded, and again when they have changed since.

        Raises:
            BundleError: the folder is not a pack, two of its bundles have the same language, or a
                pinned one cannot be loaded.
            ConfigError: a pinned language or the fallback is not in the pack, or the limit is too
                low for a bundle beside the pinned ones.
        """
        options = LoadOptions(**keywords)
        router = Router(Path(path), PackIndex.read(path), detector, fallback)
        return cls(router, options, memory_limit, pinned, mixed_spaces=mixed_spaces)

    @property
    def languages(self) -> list[str]:
        """The tags of the languages that have a bundle."""
        return list(self._router.bundles)

    @property
    def statistics(self) -> CacheStatistics:
        """The bundles that are loaded, and the counts of cache hits, loads and evictions."""
        return self._cache.statistics()

    def route(self, lang: str | None = None) -> str:
        """Return the name of the bundle for a language, or of a more general one.

        `pt-BR` is looked up as `pt-BR`, then as `pt` (RFC 4647, lookup); None is the default.

        Raises:
            ConfigError: `lang` is not a language tag, or the pack has neither it nor a fallback.
        """
        return self._router.route(lang)

    @contextlib.contextmanager
    def encoder(self, lang: str | None = None) -> Iterator[Encoder]:
        """Give the loaded encoder for a language to the block, and keep it open until the end.

        Raises:
            BundleError: its bundle cannot be loaded.
            ConfigError: see `route`.
            ClosedError: the pack is closed.
        """
        with self._cache.lease(self.route(lang)) as encoder:
            yield encoder

    def close(self) -> None:
        """Free every model once no call uses it; encoding raises ClosedError from then on."""
        self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LanguagePack({str(self.folder)!r}, languages={self.languages})"

    def _open(self, name: str) -> Encoder:
        entry, folder = self.index.bundles[name], self._folder(name)

        def load() -> Encoder:
            manifest = entry.read_manifest(self.folder)
            return Encoder(describe_folder(folder, manifest=manifest), self._options)

        encoder = load_unchanged(folder, load, Encoder.close)
        logger.info("%s loaded", folder)
        return encoder

    def _folder(self, name: str) -> Path:
        return self.folder / self.index.bundles[name].path

    def _bytes(self, name: str) -> int:
        manifest = self.index.bundles[name].read_manifest(self.folder)
        return memory_of(self._folder(name), manifest, self._options.stored_variant)
