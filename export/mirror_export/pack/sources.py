"""Find the models of a pack, name their bundles, and fingerprint the sources of each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mirror_export.config import ExportConfig
from mirror_rt import Manifest
from mirror_rt.bundle.manifest import BUNDLES, declared_format
from mirror_rt.bundle.pack_index import PACK_FILE, is_pack
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.io.atomic import files_sha256, sha256
from mirror_rt.version import __version__

_LANGUAGE_TAG = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_WEIGHTS = ("*.safetensors", "*.bin")
# Fields of a configuration that do not influence the contents of a bundle.
_NOT_OPTIONS = {"model", "out", "overwrite", "offline", "threads"}


def find_models(folder: Path) -> tuple[list[str], list[str]]:
    """Return the tuned and model folders directly in `folder`, and the other entries; both sorted.

    Raises:
        ConfigError: there is no such folder, or no model in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"--all {folder}: no such folder")
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    models = [path for path in entries if _is_model(path)]
    if not models:
        raise ConfigError(f"--all {folder}: none of its sub-folders is a model (has a config.json)")
    return [str(path) for path in models], [path.name for path in entries if path not in models]


def name_models(models: Sequence[str]) -> dict[str, str]:
    """Name every model by its language if no other model declares the same, else by its folder.

    Return the models by their names in the pack, in the order given.
    """
    places = [str(Path(model).resolve()) if Path(model).exists() else model for model in models]
    if repeated := [model for model, n in Counter(places).items() if n > 1]:
        raise ConfigError(f"{repeated[0]} is given twice")
    languages = [_language(Path(place)) for place in places]
    count = Counter(languages)
    named: dict[str, str] = {}
    for model, place, language in zip(models, places, languages, strict=True):
        name = language if language and count[language] == 1 else Path(place).name
        if clash := next((n for n in named if n.casefold() == name.casefold()), None):
            raise ConfigError(
                f"{named[clash]} and {model} would both be {name!r} in the pack: rename a folder"
            )
        if not name or name.startswith(".") or ":" in name or name == PACK_FILE:
            raise ConfigError(f"{model}: {name!r} cannot be the name of a bundle: rename it")
        named[name] = model
    return named


def fingerprint(folder: Path, config: ExportConfig) -> dict[str, Any]:
    """Return the identity of a bundle's source, as plain JSON: model, options and version.

    A later run keeps the bundle of a model folder if all three are the same.
    """
    fields = {f.name for f in dataclasses.fields(config)} - _NOT_OPTIONS
    options = {name: _plain(getattr(config, name)) for name in sorted(fields)}
    return {
        "model": Path(config.model).name if Path(config.model).exists() else config.model,
        "model_sha256": files_sha256(_model_files(folder), folder),
        "options": json.loads(json.dumps(options)),
        "generator": f"mirror-rt {__version__}",
    }


def weight_bytes(folder: Path) -> int:
    """Return the bytes of a model folder's weights once they are float32."""
    found = [sum(path.stat().st_size for path in folder.glob(pattern)) for pattern in _WEIGHTS]
    return next((size for size in found if size), 0) * (2 if _is_half(folder) else 1)


def _is_half(folder: Path) -> bool:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(values.get("dtype") or values.get("torch_dtype")).endswith("float16")
    except (OSError, ValueError, AttributeError):
        return False  # the export itself reports what is wrong


def _is_model(path: Path) -> bool:
    if not (path / "config.json").is_file() or is_pack(path):
        return False
    try:
        return declared_format(path) not in BUNDLES
    except BundleError:
        return True  # a damaged manifest: the export reports it


def _language(folder: Path) -> str | None:
    """Return the language that a tuned folder declares, if it can serve as a folder name."""
    try:
        if declared_format(folder) != "mirror_rt encoder":
            return None
        language = Manifest.read(folder, "mirror_rt encoder").language
    except BundleError:
        return None  # the export reports it
    return language if language and _LANGUAGE_TAG.fullmatch(language) else None


def _model_files(folder: Path) -> Iterator[Path]:
    """Return the files of a model and of its sentence-transformers modules with a config.json."""
    modules = [path.parent for path in folder.glob("*/config.json")]
    paths = [path for place in (folder, *modules) for path in place.iterdir()]
    return (path for path in sorted(paths) if path.is_file())


def _plain(value: Any) -> Any:
    """Return an option as JSON: files by the hash of their content, many strings by one hash."""
    if isinstance(value, Path) and value.is_dir():
        return files_sha256(sorted(value.glob("*.tsv")), value)
    if isinstance(value, Path):
        return sha256(value)
    if isinstance(value, list):
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return value
