"""Train a sparse encoder (SPLADE) on queries and their documents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.schema import least
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import NotNegative, Rate
from mirror_train.systems.cross_encoder import PairRecipe
from mirror_train.systems.options import StringOptions, Training, print_result, run_options
from mirror_train.systems.system import System
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_rt.tokens.tokenization import TokenizedTexts
    from mirror_train.training.run import TuneReport

_CENTRED = 200  # documents by which a new head is centred


@dataclass(frozen=True, slots=True)
class RankingRecipe(PairRecipe):
    """The hyper-parameters of ranking the document of each query among those of its batch."""

    batch_size: Annotated[int, least(2, ": the others are the negatives")] = 32


@dataclass(frozen=True, slots=True)
class SpladeRecipe(RankingRecipe):
    """The hyper-parameters of a sparse encoder.

    Attributes:
        query_flops: lambda_q, the weight of the FLOPS regulariser of queries.
        document_flops: lambda_d, that of documents.
        flops_warm_up: the share of the steps over which both rise to these, quadratically.
    """

    query_flops: NotNegative = 0.02
    document_flops: NotNegative = 0.012
    flops_warm_up: Rate = 0.33


@dataclass(frozen=True, kw_only=True)
class RankedPairs(StringOptions):
    """The pairs of a query and a document to train on."""

    data: Annotated[
        Path,
        Help("UTF-8 text, a pair a line: query||document, or two-column TSV; or the form of "
             "--data-format", "FILE"),
    ] = field()  # fmt: skip


# Its options, without those of single strings.
PAIRS = Group("pairs", leave_out=("words", "top", "longer_than"))


@dataclass(frozen=True, kw_only=True)
class TrainSplade(Training):
    """Train a sparse encoder (SPLADE) on queries and their documents.

    The base is a masked language model. Its vectors have a weight for each word, most of them 0;
    the higher --query-flops and --document-flops, the fewer words have one. The folder is one of
    sentence-transformers' SparseEncoder, which 'mirror-rt export' and 'serve' take. Ctrl-C writes a
    checkpoint.

    Examples:
        mirror-rt train splade --model bert-base-uncased --data pairs.tsv --out sparse
        mirror-rt train splade --data triplets.tsv --data-format triplets --out sparse
    """

    pairs: Annotated[RankedPairs, PAIRS]
    config: Annotated[Given[TrainConfig], run_options("precision")]
    recipe: Annotated[Given[SpladeRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("splade", self.config, self.recipe.make())
        print_result(train("splade", self.pairs.read(), config))


def flops(weights: Tensor) -> Tensor:
    """Return the FLOPS regulariser of the weights [n, V] of words in n texts, a scalar.

    The sum over the words j of (1/n sum_i w_ij)^2 (Paria et al. 2020; SPLADE, Formal et al. 2021),
    which follows the number of products that a search in an inverted index takes.
    """
    return weights.mean(dim=0).square().sum()


def _run(data: TrainingData, config: TrainConfig) -> TuneReport:
    """Minimise L_rank + lambda_q FLOPS(queries) + lambda_d FLOPS(documents) (Formal et al. 2021).

    L_rank is the cross-entropy of the dot products of a query's weights with those of the documents
    of its batch; the weight of a word is w_j = max_i log(1 + relu(logit_ij)) over the tokens i, as
    in SPLADE v2.
    """
    from mirror_train.model.word_head import WordHead, as_masked, centre_words, declare_words
    from mirror_train.training.ranking import course, ranking_loss, ranking_steps
    from mirror_train.training.run import begun

    recipe: SpladeRecipe = config.recipe
    with begun(config, config.precision) as run:
        run.base, new = as_masked(run.load(dropout=recipe.dropout), seed=config.seed)
        base = run.base
        base.check_length(recipe.max_length)
        run.start(data.sha256(), dataclasses.asdict(recipe))
        head = WordHead(base.model.config.vocab_size)
        if new:
            texts = data.second[:_CENTRED]
            centre_words(base.model, run.encoder(head).encode(texts, normalize_embeddings=False))
        tokenizer = base.text_tokenizer(recipe.max_length)

        def loss(z: Tensor, ids: Tensor, tokens: TokenizedTexts, step: int) -> Tensor:
            queries, documents = z[: len(ids)], z[len(ids) :]
            rising = recipe.flops_warm_up * steps.total
            factor = min(1.0, (step + 1) / rising) ** 2 if rising else 1.0
            fewer = recipe.query_flops * flops(queries) + recipe.document_flops * flops(documents)
            return ranking_loss(queries @ documents.T, ids) + factor * fewer

        steps = ranking_steps(run, data, lambda queries, others: tokenizer(queries + others), loss)
        modules = {"encoder": base.model.requires_grad_(True)}
        trainer = run.trainer(steps, head, modules, recipe)
        run.train(trainer, "splade", run.encoder(head))
        return run.write(
            head,
            trainer.stats,
            recipe={"system": "splade"} | dataclasses.asdict(recipe),
            data=data.summary(),
            training=course(trainer.stats),
            level=None,
            language=data.language,
            also=partial(declare_words, max_length=base.max_length),
        )


SYSTEM = System(
    name="splade",
    title="train a sparse encoder (SPLADE) on queries and their documents",
    paper="SPLADE (Formal et al. 2021)",
    recipe=SpladeRecipe,
    run=_run,
    command=f"{__name__}:TrainSplade",
    labelled=True,
)
