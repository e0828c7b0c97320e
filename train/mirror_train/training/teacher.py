"""The vectors of a teacher, which the run time encodes once, and how a student follows them.

A teacher that knows some of the languages of a run reads the strings of these alone. The other
pairs are contrasted with all, in the same batches, and follow nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_rt import Encoder
from mirror_rt.bundle.identity import digest_of
from mirror_rt.encoding.batch_encoder import EmbeddingModel, Vectors
from mirror_rt.errors import ConfigError, ModelError, NonFiniteError, Setting
from mirror_train.data.batches import StepBatch
from mirror_train.data.training_data import TrainingData, is_of
from mirror_train.loss import infonce, soft_targets
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.kept_vectors import kept_vectors
from mirror_train.training.run import Run
from mirror_train.training.teacher_model import known_languages, teacher_folder

_COMPARED, _SAME = 16, 1e-2  # strings by which a base model is recognised, and their distance
_LEAST = 2  # strings whose cosines are compared

logger = logging.getLogger("mirror_train")


@dataclass(frozen=True, slots=True)
class Lesson:
    """The folder of a teacher, its digest, and for each pair the string that it reads, if any."""

    folder: Path
    digest: str
    strings: list[str | None]

    @property
    def identity(self) -> dict[str, Any]:
        """Return the teacher's part of a run's identity."""
        taught = len(self.strings) - self.strings.count(None)
        partly = {"taught": taught} if taught < len(self.strings) else {}
        return {"teacher": self.digest} | partly


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher's vectors of strings, their mean taken off.

    Attributes:
        rows: int64 [n], the row of `vectors` for each pair of the data; -1 where it has read none.
        vectors: float32 [n, E].
        record: the entry of the teacher in mirror.json.
    """

    rows: npt.NDArray[np.int64]
    vectors: Tensor
    record: dict[str, Any]

    def views_of(self, batch: StepBatch, recipe: Recipe) -> StepBatch:
        """Return the views that the loss needs: of strings that are not contrasted, the first."""
        half = len(batch.texts) // 2
        if recipe.teacher_weight < 1 or batch.texts[:half] != batch.texts[half:]:
            return batch
        return batch._replace(texts=batch.texts[:half], views=1, span_draws=None)

    def loss(self, z: Tensor, batch: StepBatch, recipe: Recipe) -> Tensor:
        """Return the loss of the views z [V * n, D] of a batch, a scalar; see `soft_targets`.

        Pairs that the teacher has not read are in the contrastive part alone, which has all pairs.
        """
        ids = None
        if batch.group_ids is not None:
            ids = torch.from_numpy(batch.group_ids).to(z.device)
        rows, weight = torch.from_numpy(self.rows[batch.rows]), recipe.teacher_weight
        taught = (rows >= 0).nonzero().squeeze(1)
        views = z.chunk(batch.views)
        soft = partial(soft_targets, temperature=recipe.temperature)
        if len(taught) == len(rows):
            return soft(views, self.vectors[rows], weight=weight, group_ids=ids)
        loss = (1 - weight) * infonce(*views, temperature=recipe.temperature, group_ids=ids)
        places = taught.to(z.device)
        own = None if ids is None else ids[places]
        if len(taught) < _LEAST or (own is not None and bool((own == own[0]).all())):
            return loss  # no string of these has another to be compared with
        followed = soft([view[places] for view in views], self.vectors[rows[taught]], group_ids=own)
        return loss + weight * followed


def find_teacher(
    run: Run,
    data: TrainingData,
    recipe: Recipe,
    *,
    own_loss: bool,
    tune: Callable[[TrainingData, dict[str, Any]], object],
) -> Lesson | None:
    """Return a run's teacher, which may have to be fetched or tuned, and the texts that it reads.

    `tune` is that of `teacher_folder`.

    Raises:
        BundleError: there is no such model.
        ConfigError: the teacher does not go with the other settings.
    """
    guides = recipe.guide_margin is not None
    if (name := run.config.teacher_name) is None:
        for needs, field in ((recipe.teacher_weight != 1, "teacher_weight"),
                             (guides, "guide_margin")):  # fmt: skip
            if needs:
                raise ConfigError(Setting(field), " goes with ", Setting("teacher"))
        return None
    for wrong, why in (
        (run.processes.count > 1, " is for one process: start none with torchrun"),
        (own_loss, " has a loss of its own: pass no other"),
        (recipe.loss != "ntxent", f" goes with the loss ntxent, not with {recipe.loss}"),
        (recipe.same_dropout, " does not go with controlled dropout"),
        (
            recipe.crop is not None and not guides,
            " reads whole strings, and does not go with crops of them",
        ),
        (guides and recipe.teacher_weight != 1, " guides and is not followed, so has no weight"),
        (data.hard_negatives is not None, f" has no use for the hard negatives of {data.source}"),
    ):
        if wrong:
            raise ConfigError(Setting("teacher"), why)
    if guides:
        folder = teacher_folder(run.config, tune)
        return Lesson(folder, digest_of(folder), list(data.first))
    known = known_languages(run.config)
    strings = _strings_read(data, known)
    if known and data.language is not None and not is_of(data.language, known):
        logger.warning(
            "by the table of languages the teacher %s is for %s, and the strings of %s are %r",
            name, ", ".join(sorted(known)), data.source, data.language,
        )  # fmt: skip
    if not any(strings):
        raise ConfigError(
            Setting("teacher"),
            f" {name} knows {', '.join(sorted(known))} by the table of languages, and no string "
            f"of {data.source} is known to be of these",
        )
    if None in strings and recipe.teacher_weight == 1:
        raise ConfigError(
            Setting("teacher_weight"),
            f" has to be below 1, for {strings.count(None)} pairs of {data.source} are of other "
            f"languages than those of the teacher {name}, and would not be learned",
        )
    folder = teacher_folder(run.config, tune)
    return Lesson(folder, digest_of(folder), strings)


def read_teacher(run: Run, lesson: Lesson, student: EmbeddingModel) -> Teacher:
    """Encode the strings that the teacher reads.

    Raises:
        ConfigError: the teacher is the student's base model.
        ModelError: a vector is not finite.
    """
    texts = list(dict.fromkeys(one for one in lesson.strings if one is not None))
    vectors, record = encoded(run, lesson, texts)
    _refuse_student(run, vectors, student.encode(texts[:_COMPARED]))
    row_of = {text: row for row, text in enumerate(texts)}
    return Teacher(
        np.array([-1 if one is None else row_of[one] for one in lesson.strings]),
        torch.from_numpy(centred(vectors)),
        record,
    )


def centred(vectors: Vectors) -> Vectors:
    """Return vectors [n, E] without their mean, which makes all of their cosines alike."""
    mean: Vectors = vectors.mean(axis=0)
    return vectors - mean


def encoded(run: Run, lesson: Lesson, texts: list[str]) -> tuple[Vectors, dict[str, Any]]:
    """Return the vectors of texts by a lesson's model, and the record of that.

    Finished vectors are kept in the folder OUT.teacher, by everything that decides them.
    """
    encoder = Encoder.load(lesson.folder)

    def encode(part: list[str]) -> Vectors:
        try:
            return encoder.encode(part)
        except NonFiniteError as error:
            raise ModelError(
                f"the teacher {run.config.teacher_name} gives {part[error.items[0][0]]!r} "
                "a vector that is not finite: choose another teacher or a better precision"
            ) from error

    try:
        decides = {"teacher": lesson.digest, "providers": encoder.providers}
        vectors = kept_vectors(run, "teacher", encode, texts, decides)
        manifest = encoder.manifest
    finally:
        encoder.close()
    record = {
        "name": run.config.teacher_name,
        "base_model": manifest.base_model.get("name") if manifest.data else None,
        "sha256": lesson.digest,
        "dimension": vectors.shape[1],
        "strings": len(texts),
        "tuned_on": (manifest.data or {}).get("source"),
    }
    return vectors, {key: value for key, value in record.items() if value is not None}


def _strings_read(data: TrainingData, known: frozenset[str]) -> list[str | None]:
    """Return for each pair the first of its strings in a known language, if languages are known."""
    if not known or data.languages is None:
        return list(data.first)

    rows = zip(data.first, data.second, data.languages, strict=True)
    return [
        a if is_of(first, known) else b if is_of(second, known) else None
        for a, b, (first, second) in rows
    ]


def _refuse_student(run: Run, vectors: Vectors, own: Any) -> None:
    own = np.asarray(own, dtype=np.float32)
    if own.shape[1] != vectors.shape[1]:
        return
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (own, vectors[: len(own)])]
    if np.abs(units[0] - units[1]).max() < _SAME:
        raise ConfigError(
            Setting("teacher"),
            f" {run.config.teacher_name} gives the very vectors of the base model, which can learn "
            "nothing from it: tune it first, or choose another",
        )
