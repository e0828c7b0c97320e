"""Find the model that a student follows: by its folder or name, or the ready teacher.

The ready teacher is tuned from a ready model when it is first needed, and kept in the cache.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from mirror_rt.bundle.description import STORED
from mirror_rt.bundle.hub import cache_folder
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.kept_work import Identity
from mirror_train.compute.precision import resolve_device, resolve_precision
from mirror_train.data.strings import TOP, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.base_models import load_languages
from mirror_train.recipes.recipe import load_recipe

AUTO = "auto"  # its name
_BASES = ("all-mpnet-base-v2", "all-MiniLM-L6-v2")  # the second where a cache lacks the first
_LANGUAGE, _RECIPE = "en", "word"
_CHECKPOINT_EVERY = 25  # steps

logger = logging.getLogger("mirror_train")


class _Taught(Protocol):
    """The part of a run's configuration that says which teacher it has."""

    @property
    def teacher_name(self) -> str | None: ...
    @property
    def offline(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def show_progress_bar(self) -> bool | None: ...


def teacher_folder(config: _Taught, tune: Callable[[TrainingData, dict[str, Any]], object]) -> Path:
    """Return the folder of a run's teacher, which may have to be fetched, or tuned if it is `auto`.

    Args:
        config: the run's.
        tune: tunes the ready teacher on strings, by the fields of a configuration.

    Raises:
        BundleError: there is no such model.
        Interrupted: Ctrl-C while the ready teacher was tuned; the next run goes on from there.
    """
    if not _is_ready(config):
        return _named(config)
    words, settings = _ready_teacher(config)
    out: Path = settings["out"]
    if not (out / Layout.manifest).is_file():
        said = "tuning the teacher, %s, on %d English words, once: %s will keep it"
        logger.warning(said, Path(settings["model"]).name, len(words), out)
        tune(words, settings)
    return out


def kept_teacher(config: _Taught) -> Path | None:
    """Return the folder of a run's teacher; None if it is `auto` and has not been tuned."""
    if not _is_ready(config):
        return _named(config)
    out: Path = _ready_teacher(config)[1]["out"]
    return out if (out / Layout.manifest).is_file() else None


def known_languages(config: _Taught) -> frozenset[str]:
    """Return the languages that the table says a run's teacher is suited to; none if it has no row.

    A tuned teacher has the row of its base model.
    """
    name = str(config.teacher_name)
    if _is_ready(config):
        name = _BASES[0]
    else:
        folder = _named(config)
        if (folder / Layout.manifest).is_file():
            name = Manifest.read(folder, STORED).base_model.get("name") or name
    return frozenset(load_languages().base(name).languages)


def _is_ready(config: _Taught) -> bool:
    return config.teacher_name == AUTO and not Path(AUTO).exists()


def _named(config: _Taught) -> Path:
    return LoadOptions(offline=config.offline).find(str(config.teacher_name))


def _ready_teacher(config: _Taught) -> tuple[TrainingData, dict[str, Any]]:
    """Return the strings of the ready teacher, and the fields of its run."""
    name, folder = _at_hand(offline=config.offline)
    words, recipe = word_list(_LANGUAGE, top=TOP), load_recipe(_RECIPE)
    identity = Identity({
        "base": digest_of(folder), "strings": words.sha256(),
        "recipe": dataclasses.asdict(recipe),
        "precision": resolve_precision("auto", resolve_device(config.device)),
    })  # fmt: skip
    out = cache_folder() / "teachers" / f"{Path(name).name}-{identity.digest[:16]}"
    return words, {
        "out": out, "model": name, "recipe": recipe, "device": config.device,
        "offline": config.offline, "resume": True, "checkpoint_every": _CHECKPOINT_EVERY,
        "show_progress_bar": config.show_progress_bar,
    }  # fmt: skip


def _at_hand(*, offline: bool) -> tuple[str, Path]:
    """Return the name and the folder of the ready model that the teacher is tuned from."""
    options = LoadOptions(offline=offline)
    best, smaller = _BASES
    try:
        return best, options.find(best)
    except BundleError:
        if not offline:
            raise
    folder = options.find(smaller)
    logger.warning("%s is not in the cache, and the run is offline: the teacher is %s", *_BASES)
    return smaller, folder
