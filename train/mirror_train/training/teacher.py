"""The vectors of a teacher, which the run time encodes once, and how a student follows them."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirror_rt import Encoder
from mirror_rt.encoding.batch_encoder import EmbeddingModel, Vectors
from mirror_rt.errors import ConfigError, ModelError, NonFiniteError, Setting
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import new_file, write_json
from mirror_rt.kept_work import Identity
from mirror_rt.progress import progress_bar
from mirror_train.data.batches import StepBatch
from mirror_train.data.training_data import TrainingData
from mirror_train.loss import soft_targets
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run import Run

_PART = 2048  # strings between two files, which a kill loses
_COMPARED, _SAME = 16, 1e-2  # strings by which a base model is recognised, and their distance


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher's vectors of the first strings of all pairs, their mean taken off.

    Attributes:
        rows: string -> its row of `vectors`.
        vectors: float32 [n, E].
        record: what mirror.json says of the teacher.
    """

    rows: dict[str, int]
    vectors: Tensor
    record: dict[str, Any]

    def views_of(self, batch: StepBatch, recipe: Recipe) -> StepBatch:
        """Return the views that the loss needs: of strings that are not contrasted, the first."""
        half = len(batch.texts) // 2
        if recipe.teacher_weight < 1 or batch.texts[:half] != batch.texts[half:]:
            return batch
        return batch._replace(texts=batch.texts[:half], views=1, span_draws=None)

    def loss(self, z: Tensor, batch: StepBatch, recipe: Recipe) -> Tensor:
        """Return the loss of the views z [V * n, D] of a batch, a scalar; see `soft_targets`."""
        strings = batch.texts[: len(batch.texts) // batch.views]
        return soft_targets(
            z.chunk(batch.views),
            self.vectors[[self.rows[text] for text in strings]],
            temperature=recipe.temperature,
            weight=recipe.teacher_weight,
            group_ids=None if batch.group_ids is None else torch.from_numpy(batch.group_ids),
        )


def find_teacher(run: Run, data: TrainingData, recipe: Recipe, *, own_loss: bool) -> Path | None:
    """Return the folder of a run's teacher, which may have to be fetched; None where it has none.

    Raises:
        BundleError: there is no such model.
        ConfigError: the teacher does not go with the other settings.
    """
    if (name := run.config.teacher_name) is None:
        if recipe.teacher_weight != 1:
            raise ConfigError(Setting("teacher_weight"), " goes with ", Setting("teacher"))
        return None
    for wrong, why in (
        (run.processes.count > 1, " is for one process: start none with torchrun"),
        (own_loss, " has a loss of its own: pass no other"),
        (recipe.loss != "ntxent", f" goes with the loss ntxent, not with {recipe.loss}"),
        (recipe.same_dropout, " does not go with controlled dropout"),
        (data.hard_negatives is not None, f" has no use for the hard negatives of {data.source}"),
    ):
        if wrong:
            raise ConfigError(Setting("teacher"), why)
    return LoadOptions(offline=run.config.offline).find(name)


def read_teacher(
    run: Run, data: TrainingData, folder: Path, digest: str, student: EmbeddingModel
) -> Teacher:
    """Encode the first strings of all pairs by the teacher in a folder of this digest.

    What is finished is kept in the folder OUT.teacher, by everything that decides it.

    Raises:
        ConfigError: the teacher is the student's base model.
        ModelError: a vector is not finite.
    """
    texts = list(dict.fromkeys(data.first))
    encoder = Encoder.load(folder)
    try:
        identity = Identity({
            "teacher": digest, "providers": encoder.providers, "part": _PART,
            "strings": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        })  # fmt: skip
        vectors = _kept_vectors(run, encoder, texts, identity)
        tuned = encoder.manifest.data or {}
    finally:
        encoder.close()
    _refuse_student(run, vectors, student.encode(texts[:_COMPARED]))
    vectors = vectors - vectors.mean(axis=0)
    record = {
        "name": run.config.teacher_name,
        "sha256": digest,
        "dimension": vectors.shape[1],
        "strings": len(texts),
        "tuned_on": tuned.get("source"),
    }
    return Teacher(
        {text: row for row, text in enumerate(texts)},
        torch.from_numpy(vectors),
        {key: value for key, value in record.items() if value is not None},
    )


def forget_vectors(run: Run) -> None:
    """Remove the vectors that are kept, once a run is complete."""
    shutil.rmtree(run.config.beside("teacher"), ignore_errors=True)


def _kept_vectors(run: Run, encoder: Encoder, texts: list[str], identity: Identity) -> Vectors:
    """Return the vectors of the texts, [n, E], of which finished parts are read."""
    folder = run.config.beside("teacher")
    plan = folder / "identity.json"
    if not plan.exists() or Identity.read(plan.read_bytes(), plan) != identity:
        forget_vectors(run)
        write_json(plan, identity.values)
    parts = []
    bar = progress_bar(len(texts), run.shows_bars, unit="string", desc="teacher")
    try:
        for start in range(0, len(texts), _PART):
            part, path = texts[start : start + _PART], folder / f"part-{start:08d}.npy"
            if not path.exists():
                try:
                    vectors = encoder.encode(part)
                except NonFiniteError as error:
                    raise ModelError(
                        f"the teacher {run.config.teacher_name} gives {part[error.items[0][0]]!r} "
                        "a vector that is not finite: choose another teacher or a better precision"
                    ) from error
                with new_file(path, overwrite=True) as file:
                    np.save(file, vectors)
            parts.append(np.load(path))
            bar.update(len(part))
    finally:
        bar.close()
    return np.concatenate(parts)


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
