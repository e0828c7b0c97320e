"""Find and load the sources of a server's models: bundles and packs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.manifest import BUNDLES
from mirror_rt.bundle.onnx_files import kind_of
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.bundle.resolve import FileStates, file_states, name_of
from mirror_rt.encoding.loaded_bundle import LoadedBundle
from mirror_rt.encoding.model_cache import memory_of
from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.languages.tags import language_key, need_language
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import (
    SERVED,
    Catalog,
    Loaded,
    Models,
    NamedEncoder,
    Source,
)

logger = logging.getLogger("mirror_rt.server")

Sources = str | Path | Sequence[str | Path]


def load_models(source: str | Path, config: ServerConfig) -> Models:
    """Load a bundle, or the bundles of a pack.

    Raises:
        BundleError: the source is neither, or it is damaged.
        ConfigError: a language that is asked for is not in the pack.
        ProviderError: the execution providers are not available.
    """
    one = Source(source, config)
    return load_folder(one.find(), one)


def load_catalog(sources: Sources, config: ServerConfig) -> Catalog:
    """Load several bundles and packs, each under names of its own; errors as in `load_models`."""
    paths = [lasting(path) for path in listed(sources)]
    if not paths:
        raise ConfigError("no model: name a bundle or a pack")
    if len(paths) > 1 and config.model_name is not None:
        raise ConfigError(
            Setting("model_name"), f": there are {len(paths)} sources, so say which: ",
            Setting("model_aliases", f"{config.model_name}={paths[0]}"),
        )  # fmt: skip
    targets = {alias: alias.partition("=")[2] for alias in config.model_aliases}
    kept = [Source(path, config) for path in paths]
    folders = [one.find() for one in kept]
    # A bundle's own name may be a path, too, where its folder lies here: then it gets another name.
    bundles = (path for path, folder in zip(paths, folders, strict=True) if not is_pack(folder))
    own_names = {config.model_name or name_of(path) for path in bundles}
    renamed = {
        lasting(target): alias.partition("=")[0]
        for alias, target in targets.items()
        if target and target not in own_names and lasting(target) in paths
    }
    others = [alias for alias in targets if alias.partition("=")[0] not in renamed.values()]
    for i, (path, folder) in enumerate(zip(paths, folders, strict=True)):
        own = replace(
            config,
            model_name=renamed.get(path, config.model_name),
            model_aliases=tuple(alias for alias in others if i == 0 or targets[alias]),
        )
        if not is_pack(folder) and any(map(is_pack, folders)):
            own = replace(own, languages=(), fallback=None)  # they are of the packs
        kept[i] = Source(path, own)
    catalog = Catalog([load_folder(folder, one) for one, folder in zip(kept, folders, strict=True)])
    for alias in others:
        if targets[alias] and targets[alias] not in catalog.names:
            known = ", ".join([*catalog.names, *map(str, paths)])
            raise ConfigError(
                Setting("model_aliases", alias), f": there is no {targets[alias]!r}, but {known}"
            )
    return catalog


def listed(sources: Sources) -> list[str | Path]:
    """Return a source, or several, as a list."""
    return [sources] if isinstance(sources, str | Path) else list(sources)


def lasting(source: str | Path) -> str | Path:
    """Make a path absolute: a folder that is gone for a moment must not become a hub name."""
    return Path(source).absolute() if Path(source).exists() else source


def load_folder(folder: Path, source: Source) -> Models:
    """Load the folder that `Source.find` returned; raise the errors of `load_models`."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    return load_unchanged(folder, lambda: _load_folder(folder, source), _close)


def _close(models: Models) -> None:
    for model in models.by_name.values():
        if model.encoder is not None:
            model.encoder.close()


def _load_folder(folder: Path, source: Source) -> Models:
    config = source.config
    digest, files = source.digest(folder), file_states(folder)
    if is_pack(folder):
        return _load_pack(folder, source, digest, files)
    if config.languages or config.fallback:
        raise ConfigError(f"{folder} is one bundle, not a pack to choose languages of")
    # The folder of a download is named after its version or commit, so it is not asked.
    name = config.model_name or name_of(source.path)
    models = [_model(name, folder, config)]
    aliases = _aliases(config, [name])
    return Models(models, name, None, digest, aliases, files=files, source=source)


def _load_pack(folder: Path, source: Source, digest: str, files: FileStates) -> Models:
    index, config = PackIndex.read(folder), source.config
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
        (entry.verify if config.load.verify else entry.read_manifest)(folder)
        language = entry.language or name
        models.append(_model(f"{family}-{name}", folder / entry.path, config, language))
    default = index.default if index.default in chosen else chosen[0]
    return Models(
        models,
        f"{family}-{default}",
        family,
        digest,
        _aliases(config, [family, *(model.name for model in models)]),
        None if fallback is None else f"{family}-{fallback}",
        files,
        source,
    )


def _aliases(config: ServerConfig, names: Sequence[str]) -> dict[str, str]:
    """Return the other names that are for these models: name -> model, "" for the default."""
    pairs = [alias.partition("=") for alias in config.model_aliases]
    return {alias: name for alias, _, name in pairs if name in ("", *names)}


def _model(
    name: str, folder: Path, config: ServerConfig, language: str | None = None
) -> NamedEncoder:
    """Load a bundle under a name; with a limit of memory, only see how it can be loaded."""
    if config.memory_limit is None:
        loaded = _load(folder, config)
        manifest = loaded.manifest
        return NamedEncoder(name, loaded, language or manifest.language, gives=manifest.kind.gives)
    manifest = config.load.describe(folder, formats=BUNDLES).bundle
    load = partial(_load, folder, config, digest_of(folder, verified=config.load.verify))
    size = memory_of(folder, manifest, config.load.stored_variant)
    language = language or manifest.language
    return NamedEncoder(name, None, language, load=load, bytes=size, gives=manifest.kind.gives)


def _load(folder: Path, config: ServerConfig, digest: str | None = None) -> Loaded:
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder: expected a bundle or a pack")
    began = time.monotonic()
    local = replace(config.load, revision=None, offline=False)  # the folder is local already

    def load() -> Loaded:
        if digest not in (None, digest_of(folder, verified=config.load.verify)):
            raise BundleError(f"{folder} was replaced, and is not loaded again yet")
        return SERVED[kind_of(folder).gives].loader.load(folder, **local.keywords())

    loaded = load_unchanged(folder, load, LoadedBundle.close)
    logger.info("loaded %s in %.1f s", folder.name, time.monotonic() - began)
    return loaded
