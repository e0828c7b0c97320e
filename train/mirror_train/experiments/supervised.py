"""Measure models by training each further on labels, in a folder that goes away again.

So does BURT on SemEval-2013 5(a) (Tables 3 and 4), and so BERT-CF in the supervised half of its
Table 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import DataError
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.suites import EvaluationSet, Measured, Outcome
from mirror_train.training.run_config import RunConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

SUITE = "supervised"


def supervised_set(
    name: str,
    train: Callable[[RunConfig, Pooling | Literal["auto"]], TuneReport],
    metrics: Mapping[str, str],
    config: RunConfig,
    files: list[Path],
) -> EvaluationSet:
    """Return a set whose figures are those that a model reaches once it is trained further.

    `metrics` names one for each task, on its test rows where it has any, else on those held out;
    `files` hold all rows. The settings of the training are those of `config`, and the pooling is
    the model's.
    """

    def measure(model: EvaluatedModel) -> Measured:
        if model.source is None:
            raise DataError(f"{model.label} cannot be trained further")
        source, pooling = model.source
        config.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=config.out) as folder:
            own = {"model": source, "out": Path(folder) / name, "overwrite": False}
            own["revision"] = config.load_options(source)["revision"]
            manifest = train(RunConfig(**config.run_options() | own), pooling).manifest
        training, rows = manifest.training or {}, (manifest.data or {})["tasks"]
        part, kept = ("test", "test") if "test" in training else ("dev", "metrics")
        found = training[kept]
        return Measured(
            [
                Outcome(f"{task} {metric}", rows[task][part]["rows"], value)
                for task, metric in metrics.items()
                if (value := found[task][metric]) is not None  # one prediction for all rows
            ]
        )

    return EvaluationSet(SUITE, name, files[0], (None,), measure, tuple(files[1:]))
