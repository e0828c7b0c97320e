"""Find the bundle of a job, and say which of the job's options determine its vectors."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.bulk.options import BulkConfig, DatasetConfig
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.model_kinds import DENSE, LATE, WORDS, ModelKind
from mirror_rt.bundle.pack_index import refuse_pack
from mirror_rt.errors import ConfigError, DataError, ProviderError
from mirror_rt.inference.engines import providers_here
from mirror_rt.inference.identity import model_identity
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.openvino.runner import resolve_openvino
from mirror_rt.inference.providers import CPU, NATIVE, OPENVINO
from mirror_rt.io.atomic import sha256
from mirror_rt.kept_work import Identity
from mirror_rt.pipeline.options import EncodeOptions

_WINDOW_CHARACTERS, _SMALL_MODEL = 2_000_000, 90 << 20


def find_bundle(
    model: str, load: LoadOptions, kinds: tuple[ModelKind, ...] = (DENSE,)
) -> ModelDescription:
    """Describe a bundle, not a pack, of one of these kinds, with the variant of these options."""
    folder = load.find(model)
    refuse_pack(folder)
    described = load.describe(folder, tuple(kind.format for kind in (DENSE, WORDS, LATE)))
    if (kind := described.bundle.kind) not in kinds:
        raise ConfigError(
            f"{model} {kind.does}, and datasets keep one vector of a text: encode the files one by "
            "one, each to NAME.jsonl"
        )
    described.bundle.variant(load.stored_variant)
    return described


def window_characters(described: ModelDescription, load: LoadOptions) -> int:
    """Return the most characters of a window, whose work a kill loses.

    A model of up to 90 MiB takes two processors half a minute for two million characters; a larger
    one has proportionally fewer, for less than a minute. The clock would be the obvious measure,
    but a resumed job needs the windows of the one that was killed, for they make the batches.
    """
    variant = described.bundle.variant(load.stored_variant)
    graph = described.folder / (variant.weights or variant.file)
    # A graph may keep its weights in files beside it.
    size = sum(file.stat().st_size for file in graph.parent.glob(f"{graph.stem}.*"))
    return _WINDOW_CHARACTERS * _SMALL_MODEL // max(size, _SMALL_MODEL)


def _vector_plan(
    described: ModelDescription, digest: str, load: LoadOptions, options: EncodeOptions
) -> dict[str, Any]:
    """Return everything that determines the vector of a text: a JSON value for each name.

    All options count, but for the one about texts without a vector.
    """
    values, ranges = asdict(options), options.ranges
    del values["errors"]
    load, providers = _engine(described, load)
    return {
        **model_identity(digest, load, providers),
        **values,
        "ranges": None if ranges is None else np.asarray(ranges).tolist(),
    }


def dataset_plan(config: DatasetConfig) -> Identity:
    """Return everything that determines the part of a given block, on this machine."""
    described = find_bundle(config.model, config.load)
    digest = digest_of(described.folder, verified=config.load.verify)
    return Identity({
        **_vector_plan(described, digest, config.load, config.options),
        "input": config.input if "://" in config.input else str(Path(config.input).absolute()),
        "text_field": config.text_field,
        "columns": None if config.columns is None else list(config.columns),
        **({"errors": "zero"} if config.options.errors == "zero" else {}),
        "window": config.window,
    })  # fmt: skip


def file_plan(config: BulkConfig, described: ModelDescription, digest: str) -> Identity:
    """Return everything that determines the bytes of the output, with the bundle `described`.

    `digest` is that of the bundle (see `digest_of`).
    """
    return Identity({
        **_vector_plan(described, digest, config.load, config.options),
        "input": sha256(Path(config.input)),
        "text_field": config.text_field,
        "id_field": config.id_field,
        "window": config.window,
    })  # fmt: skip


def refuse_other_plan(folder: object, before: Identity, plan: Identity) -> None:
    """Raise DataError, naming a difference, if the job in a folder had another plan."""
    advice = "start anew with --overwrite, without --resume"
    plan.check(before.values, f"{folder} is of another job", advice, DataError)


def _engine(described: ModelDescription, load: LoadOptions) -> tuple[LoadOptions, list[str]]:
    """Return the options as they are on this machine, and the providers that they lead to."""
    load = resolve_openvino(load)
    if load.providers in (NATIVE, OPENVINO):
        return load, [str(load.providers)]
    exact = replace(load, allow_fallback=False)
    try:
        return load, providers_here(described, exact)
    except ProviderError:
        if not load.allow_fallback:
            raise
        return load, [CPU]  # a warning is logged when the bundle is loaded
