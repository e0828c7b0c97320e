"""Tune for one language of a run, and measure the result."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import MirrorError
from mirror_rt.evaluation import (
    Geometry,
    ScoredPairs,
    evaluate_geometry,
    evaluate_similarity,
    read_scored_pairs,
)
from mirror_rt.io.atomic import sha256, write_json
from mirror_rt.keywords import take_paths
from mirror_train.compute.precision import resolve_device
from mirror_train.data.strings import TOP, load_training_data, word_list
from mirror_train.data.thesaurus import load_thesaurus
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.joint import HeldOut, hold_out
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.base_models import LanguageTable, load_languages
from mirror_train.training.fit import run_warnings
from mirror_train.training.run_config import TrainConfig, finished_run
from mirror_train.training.tune import load_base, tune

REPORT_FILE = "languages.json"
_GEOMETRY_TEXTS = 1000

logger = logging.getLogger("mirror_train")


@dataclass(frozen=True, slots=True)
class LanguageJob:
    """The work for one language of a run.

    Attributes:
        language: tag of the language; also the name of the folder that is written.
        config: settings of its tuning.
        strings: file to tune on; None for the words of `wordfreq`.
        top: number of words to take from `wordfreq` (None for 10,000); of a thesaurus, those that
            pairs are made of (None for the number of `load_thesaurus`).
        pairs: scored pairs to evaluate on before and after tuning; None for none.
        table: has the scripts and base models of languages; None for the shipped one.
        synonyms: `strings` is a thesaurus (see `load_thesaurus`).
    """

    language: str
    config: TrainConfig
    strings: Path | None = None
    top: int | None = None
    pairs: Path | None = None
    table: LanguageTable | None = None
    synonyms: bool = False

    def __post_init__(self) -> None:
        take_paths(self)

    def read(self) -> tuple[TrainingData, HeldOut | None]:
        """Read the strings; of a thesaurus, hold out some words to measure with."""
        if self.strings is None:
            top = TOP if self.top is None else self.top
            return word_list(self.language, top=top), None
        if not self.synonyms:
            return load_training_data(self.strings, language=self.language), None
        data = load_thesaurus(self.strings, language=self.language, top=self.top)
        pairs = list(zip(data.first, data.second, strict=True))
        kept, held = hold_out(data.source, pairs, seed=self.config.seed)
        tiers = dict(zip(pairs, data.tiers or [0] * len(pairs), strict=True))
        data = TrainingData.of_pairs(
            kept,
            data.source,
            language=data.language,
            origin=data.origin,
            tiers=[tiers[pair] for pair in kept],
        )
        return data, held


@dataclass(frozen=True, slots=True)
class Measures:
    """The measurements of an encoder."""

    geometry: Geometry  # geometry of its embedding space, on the first 1,000 strings
    score: float | None  # Spearman's rho with the human scores of `LanguageJob.pairs`
    # Mean reciprocal rank of the held-out synonyms of a thesaurus, which needs no human scores (see
    # `HeldOut`).
    synonyms: float | None = None


@dataclass(frozen=True, slots=True)
class LanguageResult:
    """The result for a language.

    Attributes:
        language: tag of the language.
        model: name of the base model.
        status: tuned, failed, or `kept` where an earlier run had finished it.
        strings: number of strings that it was tuned on.
        seconds: duration of training.
        before: measurements of the base model, with the pooling that it declares, else the mean.
        after: measurements of the tuned model.
        pairs: name of the set of scored pairs.
        pairs_sha256: hash of that set.
        warning: a doubt about the strings, or about the base model for them.
        error: why tuning failed.
        manifest_sha256: hash of the tuned folder's mirror.json.
        steps: number of optimiser steps.
        pooling: how the tuned model makes a vector of those of the tokens.
    """

    language: str
    model: str
    status: Literal["tuned", "kept", "failed"]
    strings: int | None = None
    seconds: float | None = None
    before: Measures | None = None
    after: Measures | None = None
    pairs: str | None = None
    pairs_sha256: str | None = None
    warning: str | None = None
    error: str | None = None
    manifest_sha256: str | None = None
    steps: int | None = None
    pooling: str | None = None


class Bases:
    """A cache of the last language's base model, which the next language may use too."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Any, ...], Pretrained] | None = None

    def load(self, config: TrainConfig) -> Pretrained:
        """Return the base model, loaded if it is not cached; callers must train only a copy."""
        key = base_key(config)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            gc.collect()  # frees the old model before the next one is loaded
            self._loaded = key, load_base(config)
        return self._loaded[1]


def base_key(config: TrainConfig) -> tuple[Any, ...]:
    """Return the settings that decide which base model is loaded."""
    return (config.model, config.revision, config.trust_remote_code, config.recipe.dropout)


def run_job(job: LanguageJob, bases: Bases) -> LanguageResult:
    """Tune for a language, unless an earlier run has finished it; a failure is a result, too."""
    try:
        return _finished(job) or _tune_one(job, bases)
    except (MirrorError, OSError, RuntimeError, MemoryError) as error:
        return failure(job, error)


def failure(job: LanguageJob, error: Exception) -> LanguageResult:
    """Return the result of a language whose tuning has failed."""
    reason = " ".join(str(error).split()) or repr(error)
    return LanguageResult(job.language, job.config.model, "failed", error=reason)


def _tune_one(job: LanguageJob, bases: Bases) -> LanguageResult:
    data, held = job.read()
    pairs = read_scored_pairs(job.pairs) if job.pairs else None
    base = bases.load(job.config)
    warnings = run_warnings(data, base, job.config, job.table or load_languages())
    for warning in warnings:
        logger.warning("%s", warning)
    encoder = TorchEncoder(base, device=resolve_device(job.config.device))
    before = _measure(encoder, data, pairs, held)
    copied = copy.deepcopy(base)
    report = tune(data, job.config, base=copied, on_base=lambda _: None)  # it is warned above
    manifest = report.manifest
    tuned = TorchEncoder.load(job.config.out, device=job.config.device)
    after = _measure(tuned, data, pairs, held)
    for name in ("synonyms", "score"):
        was, now = getattr(before, name), getattr(after, name)
        if was is not None and now < was:
            warnings.append(f"{name} is worse than the base model's: {now:.3f}, before {was:.3f}")
            logger.warning("%s: %s", job.language, warnings[-1])
    return _result(job, manifest, "tuned", before=before, after=after,
                   warning="; ".join(warnings) or None)  # fmt: skip


def _measure(
    model: EmbeddingModel, data: TrainingData, pairs: ScoredPairs | None, held: HeldOut | None
) -> Measures:
    return Measures(
        evaluate_geometry(model, data.first[:_GEOMETRY_TEXTS]),
        None if pairs is None else evaluate_similarity(model, pairs),
        None if held is None else held.reciprocal_rank(model),
    )


def _result(
    job: LanguageJob, manifest: Manifest, status: Literal["tuned", "kept"], **measured: Any
) -> LanguageResult:
    return LanguageResult(
        job.language,
        job.config.model,
        status,
        strings=(manifest.data or {}).get("strings"),
        steps=(manifest.training or {}).get("steps"),
        seconds=(manifest.training or {}).get("seconds"),
        pairs=None if job.pairs is None else f"{job.pairs.parent.name}/{job.pairs.name}",
        pairs_sha256=None if job.pairs is None else sha256(job.pairs),
        manifest_sha256=sha256(job.config.out / Layout.manifest),
        pooling=manifest.pooling,
        **measured,
    )


def _finished(job: LanguageJob) -> LanguageResult | None:
    """Return the result of an earlier run for a language; None where it did not finish."""
    config, out, model = job.config, job.config.out, Path(job.config.model)
    if not config.resume or not out.is_dir():  # before the data are read
        return None
    # The facts of the base model that are known without loading it.
    name = model.name if model.exists() else config.model
    manifest = finished_run(config, job.read()[0].sha256(), {"name": name})
    if manifest is None:
        return None
    known = _read_report(out.parent / REPORT_FILE).get(job.language, {})
    if known.get("manifest_sha256") != sha256(out / Layout.manifest):
        known = {}
    pairs = None if job.pairs is None else sha256(job.pairs)
    scored = known.get("pairs_sha256") == pairs  # else the scores are of other pairs
    measured = {name: _measures(known.get(name), scored=scored) for name in ("before", "after")}
    return _result(job, manifest, "kept", **measured)


def remember(path: Path, result: LanguageResult) -> None:
    """Write a result into the report in place of its language's old one, to outlive the run."""
    if result.status == "failed":
        return
    write_json(path, _read_report(path) | {result.language: dataclasses.asdict(result)})


def _read_report(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # the report only holds figures to show again, so a run can do without it
    return values if isinstance(values, dict) else {}


def _measures(values: Any, *, scored: bool) -> Measures | None:
    try:
        score = values["score"] if scored else None
        return Measures(Geometry(**values["geometry"]), score, values.get("synonyms"))
    except (TypeError, KeyError):
        return None
