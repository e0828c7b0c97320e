"""Find the bundle of a job, and say which of the job's options determine its vectors."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.bulk.options import BulkConfig, DatasetConfig
from mirror_rt.bundle.onnx_files import digest_of, read_manifest
from mirror_rt.bundle.pack_index import refuse_pack
from mirror_rt.errors import DataError, ProviderError
from mirror_rt.inference.engines import engine_version, providers_here
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.openvino.runner import resolve_openvino
from mirror_rt.inference.providers import CPU, NATIVE, OPENVINO
from mirror_rt.io.atomic import sha256
from mirror_rt.pipeline.options import EncodeOptions

# Options that change no vector: where the bundle is from (its hash counts anyway), whether it is
# checked, which threads or cards share the work, what happens to a text without a vector, and
# where vectors are kept.
_NO_CHANGE_OF_VECTORS = frozenset({"revision", "offline", "verify", "allow_fallback", "threads",
                                   "spinning", "devices", "errors", "cache",
                                   "cache_bytes"})  # fmt: skip

_WINDOW_CHARACTERS, _SMALL_MODEL = 2_000_000, 90 << 20


def find_bundle(model: str, load: LoadOptions) -> Path:
    """Return the folder of a bundle, not of a pack, that has the variant of these options."""
    folder = load.find(model)
    refuse_pack(folder)
    read_manifest(folder, pooling=load.pooling).variant(load.stored_variant)
    return folder


def window_characters(folder: Path, load: LoadOptions) -> int:
    """Return the most characters of a window, whose work a kill loses.

    A model of up to 90 MiB takes two processors half a minute for two million characters; a larger
    one has proportionally fewer, for less than a minute. The clock would be the obvious measure,
    but a resumed job needs the windows of the one that was killed, for they make the batches.
    """
    variant = read_manifest(folder, pooling=load.pooling).variant(load.stored_variant)
    graph = folder / (variant.weights or variant.file)
    # A graph may keep its weights in files beside it.
    size = sum(file.stat().st_size for file in graph.parent.glob(f"{graph.stem}.*"))
    return _WINDOW_CHARACTERS * _SMALL_MODEL // max(size, _SMALL_MODEL)


def _vector_plan(folder: Path, load: LoadOptions, options: EncodeOptions) -> dict[str, Any]:
    """Return everything that determines the vector of a text: a JSON value for each name.

    An option counts unless it is known to change no vector, so a new option counts by default.
    """
    from mirror_rt import __version__

    values, ranges = asdict(load) | asdict(options), options.ranges
    return {
        **{name: value for name, value in values.items() if name not in _NO_CHANGE_OF_VECTORS},
        **_engine(folder, load),
        "provider_options": {name: str(value) for name, value in load.provider_options.items()},
        **({"errors": "zero"} if options.errors == "zero" else {}),
        "ranges": None if ranges is None else np.asarray(ranges).tolist(),
        "bundle": digest_of(folder),
        "mirror_rt": __version__,
    }


def dataset_plan(config: DatasetConfig) -> dict[str, Any]:
    """Return everything that determines the part of a given block, on this machine."""
    return {
        **_vector_plan(find_bundle(config.model, config.load), config.load, config.options),
        "text_field": config.text_field,
        "columns": None if config.columns is None else list(config.columns),
        "window": config.window,
    }


def file_plan(config: BulkConfig, folder: Path) -> dict[str, Any]:
    """Return everything that determines the bytes of the output, with the bundle in `folder`."""
    return {
        **_vector_plan(folder, config.load, config.options),
        "input": sha256(Path(config.input)),
        "text_field": config.text_field,
        "id_field": config.id_field,
        "window": config.window,
    }


def refuse_other_plan(folder: object, before: dict[str, Any], plan: dict[str, Any]) -> None:
    """Raise DataError, naming a difference, if the job in a folder had another plan."""
    now = json.loads(json.dumps(plan))
    for name in now.keys() | before.keys():
        if before.get(name) != now.get(name):
            raise DataError(
                f"{folder} is of another job, {name} was {before.get(name)!r} and is "
                f"{now.get(name)!r}: start anew with --overwrite, without --resume"
            )


def _engine(folder: Path, load: LoadOptions) -> dict[str, Any]:
    """Return what computes the vectors on this machine, and its version."""
    load = resolve_openvino(load)
    if load.providers in (NATIVE, OPENVINO):
        name = str(load.providers)
        return {"providers": [name], "variant": load.variant, **engine_version(name)}
    manifest = read_manifest(folder, pooling=load.pooling)
    try:
        names = providers_here(folder, manifest, replace(load, allow_fallback=False))
    except ProviderError:
        if not load.allow_fallback:
            raise
        names = [CPU]  # a warning is logged when the bundle is loaded
    return {"providers": names, **engine_version(names[0])}
