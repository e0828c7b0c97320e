"""Train a late-interaction model (ColBERT) on queries and their documents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from mirror_rt.cli.parsing.options import Given, Group
from mirror_rt.errors import ModelError
from mirror_rt.evaluation import ScoredPairs, spearman
from mirror_rt.schema import least
from mirror_train.data.training_data import TrainingData
from mirror_train.systems.options import Training, print_result, run_options
from mirror_train.systems.splade import PAIRS, RankedPairs, RankingRecipe
from mirror_train.systems.system import System
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_rt.tokens.tokenization import TokenizedTexts
    from mirror_train.model.token_head import TokenHead, TorchMultiVector
    from mirror_train.training.run import Run, TuneReport


@dataclass(frozen=True, slots=True)
class ColbertRecipe(RankingRecipe):
    """The hyper-parameters of a late-interaction model.

    Attributes:
        dimension: length of the vector of a token.
        query_length: the most tokens of a query, which shorter ones are filled up to by [MASK].
        max_length: the most tokens of a document.
    """

    dimension: Annotated[int, least(1)] = 128
    query_length: Annotated[int, least(8)] = 32
    max_length: Annotated[int, least(8)] = 180


@dataclass(frozen=True, kw_only=True)
class TrainColbert(Training):
    """Train a late-interaction model (ColBERT) on queries and their documents.

    A projection of each token's vector is trained with the encoder. The folder is one of
    sentence-transformers' MultiVectorEncoder, which 'mirror-rt export', 'rerank' and 'serve' take.
    Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train colbert --data pairs.tsv --out late
        mirror-rt train colbert --data triplets.tsv --data-format triplets --out late
    """

    pairs: Annotated[RankedPairs, PAIRS]
    config: Annotated[Given[TrainConfig], run_options("precision")]
    recipe: Annotated[Given[ColbertRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("colbert", self.config, self.recipe.make())
        print_result(train("colbert", self.pairs.read(), config))


def _run(data: TrainingData, config: TrainConfig) -> TuneReport:
    """Minimise the cross-entropy of a query's document among those of its batch, by MaxSim.

    Khattab and Zaharia (2020), with the negatives of ColBERTv2 (Santhanam et al. 2022), which are
    those of the batch.
    """
    from mirror_train.model.token_head import BothSides, TorchMultiVector
    from mirror_train.training.ranking import course, ranking_loss, ranking_steps
    from mirror_train.training.run import begun

    recipe = config.recipe
    with begun(config, config.precision) as run:
        base = run.load(dropout=recipe.dropout)
        if base.description.gives_tokens:
            raise ModelError(f"{base.name} has a projection already: give the encoder below it")
        base.check_length(max(recipe.query_length, recipe.max_length))
        run.start(data.sha256(), dataclasses.asdict(recipe))
        sides = BothSides(base, recipe.query_length, recipe.max_length)
        head = _new_head(run, sides.length)

        def loss(z: Tensor, ids: Tensor, tokens: TokenizedTexts, step: int) -> Tensor:
            return ranking_loss(sides.scores(z, tokens.tokens, len(ids)), ids)

        steps = ranking_steps(run, data, sides, loss)
        modules = {"encoder": base.model.requires_grad_(True), "projection": head.projection}
        trainer = run.trainer(steps, head, modules, recipe)
        # In float32, as the weights are saved and read again, whatever they are trained in.
        model = TorchMultiVector(dataclasses.replace(trainer.forward, dtype=None), sides)
        run.train(trainer, "colbert", partial(score_correlation, model))
        return run.write(
            head.cpu(),
            trainer.stats,
            recipe={"system": "colbert"} | dataclasses.asdict(recipe),
            data=data.summary(),
            training=course(trainer.stats),
            level=None,
            language=data.language,
            prompts=sides.prompts,
            also=partial(sides.declare, head),
        )


def score_correlation(model: TorchMultiVector, pairs: ScoredPairs) -> float:
    """Return Spearman's rho between a late-interaction model's scores and human ones."""
    return spearman(model.scores(pairs.first, pairs.second), pairs.scores)


def _new_head(run: Run, length: int) -> TokenHead:
    """Return a head with a random projection, which follows from the seed."""
    import torch

    from mirror_train.model.dense import Dense
    from mirror_train.model.token_head import TokenHead

    size, dimension = run.base.dimension, run.config.recipe.dimension
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.config.seed)
        return TokenHead(Dense(size, dimension, bias=False, activation=torch.nn.Identity()), length)


SYSTEM = System(
    name="colbert",
    title="train a late-interaction model (ColBERT) on queries and their documents",
    paper="ColBERT (Khattab and Zaharia 2020)",
    recipe=ColbertRecipe,
    run=_run,
    command=f"{__name__}:TrainColbert",
    labelled=True,
)
