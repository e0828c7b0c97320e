"""Hold the models that are served, by the names and languages that clients ask for."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.onnx_files import digest_of
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.bundle.resolve import FileStates, file_states
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.io.atomic import sha256
from mirror_rt.languages.tags import language_key, need_language
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.config import ServerConfig

logger = logging.getLogger("mirror_rt.server")


@dataclass(frozen=True, slots=True)
class NamedEncoder:
    """An encoder, and the name by which clients ask for it.

    `language` is its language tag, None if it declares none. It was loaded at `created`, in seconds
    since the epoch.
    """

    name: str
    encoder: Encoder
    language: str | None
    created: int = field(default_factory=lambda: int(time.time()))


class Models:
    """All models that a request may name: by name, or by family and language.

    Args:
        encoders: models in order; their names differ.
        default: name of the model for requests that name none.
        family: common name of all models, of which `lang` chooses one; None for no such name.
        aliases: more names like that of the family; ConfigError for the name of a model.
        fallback: name of the model for languages that none has; None to refuse them.
        digest: digest of the manifest that they were loaded from (see `manifest_digest`).
        files: the states of their files before they were loaded.
    """

    def __init__(
        self,
        encoders: list[NamedEncoder],
        default: str,
        family: str | None = None,
        digest: str | None = None,
        aliases: Sequence[str] = (),
        fallback: str | None = None,
        files: FileStates | None = None,
    ) -> None:
        self.by_name = {model.name: model for model in encoders}
        self.default = self.by_name[default]
        self.family = family
        self.names_of_default = {*aliases, *([family] if family else [])}
        if taken := self.names_of_default & self.by_name.keys():
            raise ConfigError(
                Setting("model_aliases"), f": {min(taken)} is the name of a model already"
            )
        self.digest, self.files = digest, files or {}
        self._by_language: dict[str, NamedEncoder] = {}
        for model in encoders:
            if model.language is not None:
                self._by_language.setdefault(language_key(model.language), model)
        self._fallback = None if fallback is None else self.by_name[fallback]

    def find(self, model: str | None, lang: str | None) -> NamedEncoder:
        """Return the model that a request asks for."""
        if model is None or model in self.names_of_default:
            return self.default if lang is None else self._of_language(lang)
        found = self.by_name.get(model)
        if found is None:
            names = ", ".join([*sorted(self.names_of_default), *self.by_name])
            raise Problem(404, f"no such model: this server has {names}", "model_not_found",
                          "model")  # fmt: skip
        if lang is not None and found is not self._of_language(lang):
            raise Problem(422, f"lang: {found.name} is not of that language", "invalid_value",
                          "lang")  # fmt: skip
        return found

    def _of_language(self, lang: str) -> NamedEncoder:
        """Find the model of a tag or of a more general one, `pt` for `pt-BR`, or the fallback."""
        try:
            return need_language(lang, self._by_language, "this server", self._fallback)
        except ConfigError as error:
            raise Problem(422, f"lang: {error}", "invalid_value", "lang") from None

    def close(self) -> None:
        """Free the memory of all models."""
        for model in self.by_name.values():
            model.encoder.close()


def load_models(source: str | Path, config: ServerConfig) -> Models:
    """Load a bundle, or the bundles of a pack.

    Raises:
        BundleError: the source is neither, or it is damaged.
        ConfigError: a language that is asked for is not in the pack.
        ProviderError: the execution providers are not available.
    """
    return load_folder(config.load.find(source), config, source)


def lasting(source: str | Path) -> str | Path:
    """Make a path absolute: a folder that is gone for a moment must not become a hub name."""
    return Path(source).absolute() if Path(source).exists() else source


def manifest_digest(folder: Path) -> str:
    """Return the SHA-256 of pack.json, or the digest of a bundle (see `digest_of`)."""
    if is_pack(folder):
        return sha256(folder / Layout.pack)
    return digest_of(folder)


def load_folder(folder: Path, config: ServerConfig, source: str | Path) -> Models:
    """Load what `LoadOptions.find` returned for a source; raise the errors of `load_models`."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    digest, files = manifest_digest(folder), file_states(folder)
    if is_pack(folder):
        return _load_pack(folder, config, digest, files)
    if config.languages or config.fallback:
        raise ConfigError(f"{folder} is one bundle, not a pack to choose languages of")
    encoder = _load(folder, config)
    # The folder of a download is named after its version or commit, so it is not asked.
    path = Path(source)
    name = config.model_name or (path.resolve() if path.exists() else path).name
    models = [NamedEncoder(name, encoder, encoder.manifest.language)]
    return Models(models, name, digest=digest, aliases=config.model_aliases, files=files)


def _load_pack(folder: Path, config: ServerConfig, digest: str, files: FileStates) -> Models:
    index = PackIndex.read(folder)
    family = config.model_name or "mirror"
    by_language = {language_key(e.language or name): name for name, e in index.bundles.items()}
    by_language |= {language_key(name): name for name in index.bundles}
    asked = [need_language(one, by_language, str(folder)) for one in config.languages]
    chosen = list(dict.fromkeys(asked)) or list(index.bundles)
    fallback = index.fallback if index.fallback in chosen else None
    if config.fallback is not None:
        served = {key: name for key, name in by_language.items() if name in chosen}
        fallback = need_language(config.fallback, served, f"fallback: {folder}")
    models = []
    for name in chosen:
        entry = index.bundles[name]
        if config.load.verify:
            entry.verify(folder)
        encoder = _load(folder / entry.path, config)
        models.append(NamedEncoder(f"{family}-{name}", encoder, entry.language or name))
    default = index.default if index.default in chosen else chosen[0]
    return Models(
        models,
        f"{family}-{default}",
        family,
        digest,
        config.model_aliases,
        None if fallback is None else f"{family}-{fallback}",
        files,
    )


def _load(folder: Path, config: ServerConfig) -> Encoder:
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    began = time.monotonic()
    local = replace(config.load, revision=None, offline=False)  # the folder is local already
    encoder = Encoder.load(folder, **local.keywords())
    logger.info("loaded %s in %.1f s", folder.name, time.monotonic() - began)
    return encoder
