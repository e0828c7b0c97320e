"""Find the model that a student follows, and the languages that it knows."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.inference.load_options import LoadOptions
from mirror_train.recipes.base_models import load_languages
from mirror_train.training.run_config import TrainConfig


def teacher_folder(config: TrainConfig) -> Path:
    """Return the folder of a run's teacher, which may have to be fetched.

    Raises:
        BundleError: there is no such model.
    """
    return LoadOptions(offline=config.offline).find(str(config.teacher_name))


def known_languages(config: TrainConfig) -> frozenset[str]:
    """Return the languages that the table says a run's teacher is suited to; none if it has no row.

    A tuned teacher has the row of its base model.
    """
    name = str(config.teacher_name)
    folder = teacher_folder(config)
    if (folder / Layout.manifest).is_file():
        name = Manifest.read(folder, None).base_model.get("name") or name
    return frozenset(load_languages().base(name).languages)
