"""Measure models by what is trained on them: a regression on their vectors, or all of the model.

SentEval evaluates the STS benchmark and SICK by a regression, and so does BURT (section 4.1): a
model is "first trained on a regression task and then evaluated on the test set". BURT trains the
model further on SemEval-2013 5(a) (Tables 3 and 4), and so does BERT-CF in the supervised half of
its Table 1.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import DataError
from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.models import EvaluatedModel, LanguageView
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.evaluation.suites import EvaluationSet, Measured, Outcome
from mirror_rt.heads.task_heads import TaskHead
from mirror_train.data.labelled_examples import Examples
from mirror_train.training.run_config import RunConfig

if TYPE_CHECKING:
    from mirror_rt.encoding.batch_encoder import Vectors
    from mirror_train.training.run import TuneReport

SUITE = "supervised"
_PENALTY = 1e-4  # lambda of Tai et al.
_STEPS = 200


def regression_set(test: EvaluationSet, path: Path) -> EvaluationSet:
    """Return the set of scored pairs `test`, measured by a regression that is trained on `path`.

    A model's value is Spearman's rho between predicted and human scores.
    """
    pairs = read_scored_pairs(path)
    train = Examples(pairs.first, pairs.second, pairs.scores, (), path.name)
    train.scale()  # refuses scores that cannot be learnt before any training

    def measure(model: EvaluatedModel) -> Measured:
        encoder, tested = model.of(test.languages[0]), read_scored_pairs(test.path)
        head = fit_regression(*_vectors(encoder, pairs), train)
        found = head(*_vectors(encoder, tested))
        rho = RankCorrelation(found.scores, tested.scores)
        note = f"a regression on the vectors, trained on {len(train)} pairs"
        return Measured([Outcome.of("spearman", len(tested.scores), rho, note=note)])

    return dataclasses.replace(test, measure=measure, further=(path,))


def _vectors(encoder: LanguageView, pairs: ScoredPairs) -> tuple[Vectors, Vectors]:
    return encoder.encode(pairs.first), encoder.encode(pairs.second)


def fit_regression(u: Vectors, v: Vectors, train: Examples) -> TaskHead:
    """Fit a `RegressionLayer` to the vectors [n, D] of both sides of pairs, and their scores.

    The mean divergence is minimised, with lambda / 2 of the squared weights as in Tai et al. 2015,
    here by L-BFGS from zero, so that nothing is random.
    """
    import torch  # imported here, because the ablations are listed without torch

    from mirror_train.model.task_layers import RegressionLayer

    z, targets = torch.from_numpy(np.concatenate([u, v])).double(), torch.from_numpy(train.targets)
    features = ("u*v", "|u-v|")
    layer = RegressionLayer("relatedness", u.shape[1], train.scale(), features=features).double()
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(
        list(layer.parameters()), max_iter=_STEPS, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        optimizer.zero_grad()
        value = layer.loss(z, targets) + _PENALTY / 2 * layer.linear.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return layer.to_head()


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
