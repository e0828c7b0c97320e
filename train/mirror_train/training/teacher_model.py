"""Find the model that a student follows: by its folder or name, or the ready teacher.

The ready teacher is tuned from a ready model when it is first needed, and kept in the cache.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from mirror_rt.bundle.description import STORED
from mirror_rt.bundle.hub import cache_folder
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.kept_work import Identity
from mirror_train.data.strings import TOP, word_list
from mirror_train.recipes.base_models import load_languages
from mirror_train.recipes.recipe import load_recipe
from mirror_train.training.run_config import TrainConfig

AUTO = "auto"  # its name
_BASES = ("all-mpnet-base-v2", "all-MiniLM-L6-v2")  # the second where a cache lacks the first
_LANGUAGE, _RECIPE = "en", "word"
_CHECKPOINT_EVERY = 25  # steps

logger = logging.getLogger("mirror_train")


def teacher_folder(config: TrainConfig) -> Path:
    """Return the folder of a run's teacher, which may have to be fetched, or tuned if it is `auto`.

    Raises:
        BundleError: there is no such model.
        Interrupted: Ctrl-C while the ready teacher was tuned; the next run goes on from there.
    """
    if _is_ready(config):
        return _ready_teacher(config)
    return LoadOptions(offline=config.offline).find(str(config.teacher_name))


def known_languages(config: TrainConfig) -> frozenset[str]:
    """Return the languages that the table says a run's teacher is suited to; none if it has no row.

    A tuned teacher has the row of its base model.
    """
    name = str(config.teacher_name)
    if _is_ready(config):
        name = _BASES[0]
    else:
        folder = teacher_folder(config)
        if (folder / Layout.manifest).is_file():
            name = Manifest.read(folder, STORED).base_model.get("name") or name
    return frozenset(load_languages().base(name).languages)


def _is_ready(config: TrainConfig) -> bool:
    return config.teacher_name == AUTO and not Path(AUTO).exists()


def _ready_teacher(config: TrainConfig) -> Path:
    # Imported here: they import this module, and torch.
    from mirror_train.compute.precision import resolve_device, resolve_precision
    from mirror_train.training.tune import tune

    name, folder = _at_hand(offline=config.offline)
    words, recipe = word_list(_LANGUAGE, top=TOP), load_recipe(_RECIPE)
    identity = Identity({
        "base": digest_of(folder), "strings": words.sha256(),
        "recipe": dataclasses.asdict(recipe),
        "precision": resolve_precision("auto", resolve_device(config.device)),
    })  # fmt: skip
    out = cache_folder() / "teachers" / f"{Path(name).name}-{identity.digest[:16]}"
    if not (out / Layout.manifest).is_file():
        said = "tuning the teacher, %s, on %d English words, once: %s will keep it"
        logger.warning(said, Path(name).name, len(words), out)
        own = TrainConfig(
            out=out,
            model=name,
            recipe=recipe,
            device=config.device,
            offline=config.offline,
            resume=True,
            checkpoint_every=_CHECKPOINT_EVERY,
            show_progress_bar=config.show_progress_bar,
        )
        tune(words, own)
    return out


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
