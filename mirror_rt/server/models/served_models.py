"""The models that are served, by the names and languages that clients ask for."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from mirror_rt.bundle.hub import resolve_bundle
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.io.atomic import sha256
from mirror_rt.languages.tags import find_language, normalize_tag
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.config import ServerConfig

__all__ = [
    "Models",
    "NamedEncoder",
    "lasting",
    "load_folder",
    "load_models",
    "manifest_digest",
    "resolve_source",
]

logger = logging.getLogger("mirror_rt.server")

# What it takes to look for a tag grows with the square of its length.
_LONGEST_TAG = 256


@dataclass(frozen=True, slots=True)
class NamedEncoder:
    """An encoder as clients see it.

    Attributes:
        name: to ask for it.
        encoder: what runs.
        language: its tag, None where it declares none.
        created: when it was loaded, in seconds of the epoch.
    """

    name: str
    encoder: Encoder
    language: str | None
    created: int


class Models:
    """What a request may name: a model, or a language of the model that has several.

    Args:
        encoders: in order; names differ.
        default: name of the one that a request without a name gets.
        family: the name that they share, which with `lang` names one of them; None for none.
        digest: of the manifest that they were loaded from (see `manifest_digest`).
    """

    def __init__(
        self,
        encoders: list[NamedEncoder],
        default: str,
        family: str | None = None,
        digest: str | None = None,
    ) -> None:
        self.by_name = {model.name: model for model in encoders}
        self.default = self.by_name[default]
        self.family = family
        self.digest = digest
        self._by_language: dict[str, NamedEncoder] = {}
        for model in encoders:
            if model.language is not None:
                self._by_language.setdefault(_tag_or_name(model.language), model)

    def find(self, model: str | None, lang: str | None) -> NamedEncoder:
        """Return what a request asks for.

        Raises:
            Problem: 404 for an unknown model; 422 for a language that there is no model for, or
                that is another than the model's.
        """
        if model is None or model == self.family:
            return self.default if lang is None else self._of_language(lang)
        found = self.by_name.get(model)
        if found is None:
            names = ", ".join([*([self.family] if self.family else []), *self.by_name])
            raise Problem(404, f"no such model: this server has {names}", "model_not_found",
                          "model")  # fmt: skip
        if lang is not None and found is not self._of_language(lang):
            raise Problem(422, f"lang: {found.name} is not of that language", "invalid_value",
                          "lang")  # fmt: skip
        return found

    def _of_language(self, lang: str) -> NamedEncoder:
        """Find the model of a tag, or of a more general one: `pt-BR`, then `pt`."""
        if len(lang) > _LONGEST_TAG:
            raise Problem(422, "lang: expected a language tag, such as pt-BR", "invalid_value",
                          "lang")  # fmt: skip
        try:
            found = find_language(lang, self._by_language)
        except ConfigError:  # a bundle without a language goes by its name, which may be no tag
            found = self._by_language.get(_tag_or_name(lang))
        if found is not None:
            return found
        known = sorted({m.language for m in self.by_name.values() if m.language is not None})
        has = f"this server has {', '.join(known)}" if known else "the model declares no language"
        raise Problem(422, f"lang: no model for that language; {has}", "invalid_value", "lang")

    def close(self) -> None:
        """Free the memory of all."""
        for model in self.by_name.values():
            model.encoder.close()


def _tag_or_name(language: str) -> str:
    """Write a tag as `normalize_tag` does; what is none in lower case."""
    try:
        return normalize_tag(language)
    except ConfigError:
        return language.strip().replace("_", "-").lower()


def load_models(source: str | Path, config: ServerConfig) -> Models:
    """Load a bundle, or the bundles of a pack.

    Raises:
        BundleError: it is neither, or it is damaged.
        ConfigError: a language that is asked for is not in it.
        ProviderError: the providers cannot be had.
    """
    return load_folder(resolve_source(source, config), config)


def lasting(source: str | Path) -> str | Path:
    """What means the same later: a folder that is gone for a moment must be no hub name then."""
    return Path(source).absolute() if Path(source).exists() else source


def resolve_source(source: str | Path, config: ServerConfig) -> Path:
    """The folder of a bundle or a pack, downloaded where `source` is a hub name.

    Raises:
        MirrorError: as `resolve_bundle`.
    """
    return resolve_bundle(
        source,
        revision=config.load.revision,
        offline=config.load.offline,
        variants=[config.load.variant],
    )


def manifest_digest(folder: Path) -> str:
    """SHA-256 of pack.json or mirror.json, which hold those of all files.

    Raises:
        BundleError: there is neither.
    """
    if is_pack(folder):
        return sha256(folder / Layout.pack)
    Manifest.read(folder)  # which says what the folder is instead
    return sha256(folder / Layout.manifest)


def load_folder(folder: Path, config: ServerConfig) -> Models:
    """Load what `resolve_source` returned; raises as `load_models`."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    if is_pack(folder):
        return _load_pack(folder, config)
    if config.languages:
        raise ConfigError(f"{folder} is one bundle, not a pack to choose languages of")
    digest = manifest_digest(folder)
    encoder = _load(folder, config)
    name = config.model_name or folder.resolve().name
    model = NamedEncoder(name, encoder, encoder.manifest.language, int(time.time()))
    return Models([model], model.name, digest=digest)


def _load_pack(folder: Path, config: ServerConfig) -> Models:
    digest = manifest_digest(folder)
    index = PackIndex.read(folder)
    family = config.model_name or "mirror"
    for name in config.languages:
        if name not in index.bundles:
            raise ConfigError(f"no bundle {name!r} in {folder}: it has {', '.join(index.bundles)}")
    chosen = list(config.languages) or list(index.bundles)
    models = []
    for name in chosen:
        entry = index.bundles[name]
        if config.load.verify:
            entry.verify(folder)
        encoder = _load(folder / entry.path, config)
        language = entry.language or name
        models.append(NamedEncoder(f"{family}-{name}", encoder, language, int(time.time())))
    default = index.default if index.default in chosen else chosen[0]
    return Models(models, f"{family}-{default}", family, digest)


def _load(folder: Path, config: ServerConfig) -> Encoder:
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    began = time.monotonic()
    local = replace(config.load, revision=None, offline=False)  # the folder is here already
    encoder = Encoder.load(folder, **local.keywords())
    logger.info("loaded %s on %s in %.1f s", folder.name, encoder.providers[0],
                time.monotonic() - began)  # fmt: skip
    return encoder
