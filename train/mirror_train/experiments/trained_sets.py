"""Measure models by training on them: a regression on their vectors, or all of the model.

SentEval evaluates the STS benchmark and SICK by a regression, and so does BURT (section 4.1): a
model is "first trained on a regression task and then evaluated on the test set". BURT trains the
model further on SemEval-2013 5(a) (Tables 3 and 4), and so does BERT-CF in the supervised half of
its Table 1.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import DataError
from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.models import EvaluatedModel, LanguageView
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.evaluation.suites import EvaluationSet, Measured, Outcome
from mirror_rt.evaluation.suites.base import accuracy
from mirror_rt.heads.task_heads import TaskHead
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.tasks import TaskData
from mirror_train.training.run_config import RunConfig

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_rt.encoding.batch_encoder import Vectors
    from mirror_train.model.task_layers import TaskLayer
    from mirror_train.training.run import TuneReport

SUITE = "supervised"
# Of SentEval (tools/relatedness.py), which also gives the layer and its loss.
_SEED, _BATCH, _EPOCHS, _MOST_EPOCHS, _FRUITLESS = 1111, 64, 50, 1000, 4


def regression_set(test: EvaluationSet, path: Path, dev: Path) -> EvaluationSet:
    """Return the set of scored pairs `test`, measured by a regression that is trained on `path`.

    A model's value is Spearman's rho between predicted and human scores. The pairs of `dev` say
    when the training ends.
    """
    train, held = (read_scored_pairs(one) for one in (path, dev))
    scale = Examples(train.first, train.second, train.scores, (), path.name).scale()

    def measure(model: EvaluatedModel) -> Measured:
        encoder, tested = model.of(test.languages[0]), read_scored_pairs(test.path)
        head = fit_regression(_fed(encoder, train), _fed(encoder, held), scale)
        found = head(*_fed(encoder, tested)[:2])
        rho = RankCorrelation(found.scores, tested.scores)
        note = f"a regression on the vectors, trained on {len(train.scores)} pairs"
        return Measured([Outcome.of("spearman", len(tested.scores), rho, note=note)])

    return dataclasses.replace(test, measure=measure, further=(path, dev))


# The vectors of both sides of n pairs, as pooled, each float32 [n, D], and n scores or classes.
Fed = tuple["Vectors", "Vectors", npt.NDArray[Any]]


def _fed(encoder: LanguageView, pairs: ScoredPairs) -> Fed:
    u, v = (
        encoder.encode(side, normalize_embeddings=False) for side in (pairs.first, pairs.second)
    )
    return u, v, pairs.scores


def fit_regression(train: Fed, dev: Fed, scale: tuple[float, float]) -> TaskHead:
    """Fit a `RegressionLayer` as SentEval does: by the best Pearson correlation on `dev`.

    SentEval has a class for each of 1 .. 5, also for scores from 0; without classes for whole
    numbers below 1, lower scores are shares of 1.
    """
    from mirror_train.model.task_layers import RegressionLayer

    low, high = scale
    numbers = (1.0, high) if low == 0 and high > 1 else scale
    layer = RegressionLayer("relatedness", train[0].shape[1], numbers, features=("|u-v|", "u*v"))

    def pearson(head: TaskHead) -> float:
        predicted = head(*dev[:2]).scores
        return float(np.corrcoef(predicted, dev[2])[0, 1]) if np.ptp(predicted) else 0.0

    return fit_layer(layer, layer.squared_error, train, pearson)


def classify(data: TaskData, metric: str, model: EvaluatedModel) -> Measured:
    """Measure the accuracy on `data` of a softmax layer on the vectors of pairs, which stay."""
    from mirror_train.model.task_layers import SoftmaxLayer

    encoder = model.of(None)
    train, dev, *test = (
        _fed(encoder, ScoredPairs(one.first, one.second or [], one.targets)) for one in data.parts
    )
    features = ("u", "v", "|u-v|")
    layer = SoftmaxLayer("label", train[0].shape[1], data.train.labels, features=features)

    def hits(head: TaskHead, fed: Fed) -> Any:
        return head(*fed[:2]).scores.argmax(axis=1) == fed[2]

    head = fit_layer(layer, layer.loss, train, lambda found: float(hits(found, dev).mean()))
    found = hits(head, (test or [dev])[0]).astype(np.float64)
    return Measured([accuracy(metric, found, "a layer on vectors that stay as they are")])


def fit_layer(
    layer: TaskLayer,
    loss: Callable[[Tensor, Tensor], Tensor],
    train: Fed,
    score: Callable[[TaskHead], float],
) -> TaskHead:
    """Train a layer on vectors of pairs by Adam; return the weights with the best score.

    Every 50 epochs the layer is scored. It is trained until four scores in all were no better than
    the best before them, or for 1,000 epochs. The start and the order follow from a fixed seed.
    """
    import torch  # imported here, because the ablations are listed without torch

    z, targets = torch.from_numpy(np.stack(train[:2])).float(), torch.from_numpy(train[2])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        layer.linear.reset_parameters()
    optimizer, rng = torch.optim.Adam(layer.parameters()), np.random.default_rng(_SEED)
    best, kept, fruitless = -math.inf, layer.to_head(), 0
    for _ in range(0, _MOST_EPOCHS + 1, _EPOCHS):
        for _ in range(_EPOCHS):
            order = torch.from_numpy(rng.permutation(len(targets)))
            for rows in torch.split(order, _BATCH):
                optimizer.zero_grad()
                loss(z[:, rows].flatten(0, 1), targets[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        head = layer.to_head()
        if (found := score(head)) > best:
            best, kept = found, head
        elif (fruitless := fruitless + 1) == _FRUITLESS:
            break
    return kept


def supervised_set(
    name: str,
    train: Callable[[RunConfig, Pooling | Literal["auto"]], TuneReport],
    metrics: Mapping[str, str],
    config: RunConfig,
    files: list[Path],
    frozen: Callable[[EvaluatedModel], Measured] | None = None,
) -> EvaluationSet:
    """Return a set whose figures are those that a model reaches once it is trained further.

    `metrics` names one for each task, on its test rows where it has any, else on those held out;
    `files` hold all rows. The settings of the training are those of `config`, and the pooling is
    the model's. A row with vectors but no model, as of word vectors, is measured by `frozen`.
    """

    def measure(model: EvaluatedModel) -> Measured:
        if model.source is None:
            if frozen is None:
                raise DataError(f"{model.label} cannot be trained further")
            return frozen(model)
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
