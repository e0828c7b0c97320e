"""The cross-encoder of the runtime: scores of pairs, and documents ranked by a query."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import LATE, PAIRS
from mirror_rt.encoding.loaded_bundle import LoadedBundle, open_model
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_rt.keywords import refuse_unknown, with_visible_options
from mirror_rt.pipeline.call_options import OnLongItem, of_pipeline
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.pipeline.options import EncodeKeywords, EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline, Vectors
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.reranking.late_scores import MAXSIM, LatePairs, LateScores
from mirror_rt.reranking.options import (
    PredictKeywords,
    PredictOptions,
    ScoreActivation,
    Truncation,
)
from mirror_rt.reranking.score_head import ScoredModel, ScoreHead
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.tokens.pairs import Pair, PairTokenizer, QuestionTokenizer, as_pair
from mirror_rt.tokens.validity import why_invalid
from mirror_rt.tokens.windows import TextWindow, text_windows

if TYPE_CHECKING:
    from mirror_rt.inference.vector_cache import VectorCache

Scores = npt.NDArray[np.float32]
Ranking = list[dict[str, Any]]


class PairPipeline(Pipeline):
    """A pipeline whose texts are pairs, and whose vectors are logits, float32 [n, C].

    It takes pairs `(query, document)`, or `Pair` with a way to cut them, and of the options of
    `encode` those that a pair has.
    """

    unit = "pairs"

    def __init__(
        self,
        tokenizer: PairTokenizer | LatePairs,
        model: Any,
        cache: VectorCache | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        pairs = cast(PairTokenizer, tokenizer)  # a `LatePairs` has all that is asked of one
        super().__init__(pairs, model, normalize=False, cache=cache, prompts=prompts)

    def plan(self, **options: Unpack[EncodeKeywords]) -> EncodePlan:
        """Check the options of a call: those of `PredictOptions` but `activation`, `truncation`."""
        refuse_unknown("a cross-encoder", options, of_pipeline(PredictKeywords.__annotations__))
        if options.get("on_too_long") == "chunk":
            expected = "one of " + ", ".join(map(repr, get_args(OnLongItem)))
            raise ConfigError(field="on_too_long", expected=expected, value="chunk")
        return super().plan(**options)

    def tokenize(
        self, inputs: list[Any] | TextWindow, plan: EncodePlan, stop: threading.Event | None = None
    ) -> TokenRows:
        """Tokenise a window of checked pairs, or check a list of pairs first."""
        if not isinstance(inputs, TextWindow):
            inputs = [as_pair(item) for item in inputs]
            inputs = TextWindow(0, inputs, self.tokenizer.find_invalid(inputs))
        if plan.on_too_long == "truncate-left":
            pairs = [p._replace(left=True) if isinstance(p, Pair) else p for p in inputs.texts]
            inputs, plan = inputs._replace(texts=pairs), plan._replace(on_too_long="truncate")
        return super().tokenize(inputs, plan, stop)


@with_visible_options(LoadOptions, PredictOptions)
class Reranker(LoadedBundle):
    """A loaded cross-encoder: `Reranker.load(path).rank(query, documents)`.

    A reranker is safe to use from several threads at once. `Scheduler(reranker)` gives the logits
    of pairs, in batches of all its callers. A late-interaction model is loaded, too: its scores are
    those of `MultiVectorEncoder`, and each text of a pair is cut by itself.
    """

    _kinds = (PAIRS, LATE)
    pipeline: PairPipeline
    labels: tuple[str, ...]
    activation: ScoreActivation

    def __init__(self, description: ModelDescription, options: LoadOptions) -> None:
        super().__init__(description, options)
        folder, manifest = self.folder, self.manifest
        self._model = open_model(self.description, options)
        prompts = Prompts(manifest.prompts, manifest.default_prompt_name)
        if manifest.tokens is not None:
            self.labels, self.activation = MAXSIM, "identity"
            late = LateScores.open(self._model, description)
            cache = self._model.open_cache(late.dimension)
            self.pipeline = PairPipeline(late.tokenizer, late, cache, prompts)
            return
        head = ScoreHead.read(self.description)
        self.labels = tuple(head.described.labels)
        self.activation = head.described.activation
        kind = QuestionTokenizer if self.description.answers else PairTokenizer
        tokenizer = kind.from_file(
            folder / manifest.tokenizer,
            max_length=manifest.max_length,
            pad_id=manifest.pad_id,
            settings=description.tokenizer,
        )
        if manifest.pooling == "lasttoken":
            tokenizer.check_last(description.config.get("pad_token_id"), folder)
        scored = ScoredModel(self._model, head)
        cache = self._model.open_cache(scored.dimension)
        self.pipeline = PairPipeline(tokenizer, scored, cache, prompts)

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> Reranker:
        """Load the bundle of a cross-encoder from a folder or by its name on a hub.

        Args:
            path_or_name: a folder written by `mirror-rt export`, or the name of one on a hub.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: the folder is no bundle of a cross-encoder, or the bundle is from a newer
                version, incomplete or changed.
            ConfigError, ProviderError, MissingDependencyError: as `Encoder.load`.
        """
        return cls._load(path_or_name, keywords)

    @property
    def num_labels(self) -> int:
        """The number C of logits of a pair."""
        return len(self.labels)

    @property
    def max_length(self) -> int:
        """Most tokens of a pair, special tokens included."""
        return self.pipeline.tokenizer.max_length

    def predict(
        self,
        pairs: Iterable[Any],
        *,
        show_progress_bar: bool | None = None,
        **options: Unpack[PredictKeywords],
    ) -> Scores:
        """Score pairs of texts.

        Args:
            pairs: pairs `(query, document)`, tuples or lists of two strings.
            show_progress_bar: None shows one if the logger `mirror_rt` is at level INFO.
            **options: the fields of `PredictOptions`.

        Returns:
            float32 [n], a score for each pair; of a model with C > 1 labels [n, C].

        Raises:
            InvalidTextError: an item is no pair of texts, a text is empty, blank or not valid
                Unicode, a query leaves no room for a document and only documents are cut, or a
                pair is too long and `on_too_long` is `"error"`.
            ConfigError: an option has an unusable value.
        """
        return self._predict(pairs, _options("predict", options), show_progress_bar)

    def _predict(
        self,
        pairs: Iterable[Any],
        options: PredictOptions,
        show_progress_bar: bool | None = False,
        stop: threading.Event | None = None,
    ) -> Scores:
        plan = self.pipeline.plan(**options.of_pipeline())
        items = self.items(pairs, options.truncation)
        windows = text_windows(items, invalid=self.pipeline.tokenizer.find_invalid(items))
        found = self.pipeline.encode(windows, plan, show_progress_bar, stop).embeddings
        return self.scores(found, options.activation)

    def items(self, pairs: Iterable[Any], truncation: Truncation = "longest_first") -> list[Any]:
        """Return pairs as the pipeline and a `Scheduler` take them; other items stay as they are.

        Raises:
            ConfigError: `pairs` is a single string.
        """
        if isinstance(pairs, str):
            raise ConfigError("expected pairs of texts, got one string")
        return [as_pair(item, truncation) for item in as_list(pairs)]

    def scores(self, logits: npt.ArrayLike, activation: ScoreActivation | None = None) -> Scores:
        """Make scores of logits [n, C], as the pipeline and a `Scheduler` give them.

        Returns:
            float32 [n], or with C > 1 labels [n, C].
        """
        activate = ACTIVATIONS[activation or self.activation]
        made: Scores = activate(np.asarray(logits, np.float64)).astype(np.float32)
        return made[:, 0] if self.num_labels == 1 else made

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        show_progress_bar: bool | None = None,
        **options: Unpack[PredictKeywords],
    ) -> Ranking:
        """Rank documents by their scores with a query, the best first.

        Args:
            query: the query.
            documents: the documents.
            top_k: return the best k documents alone; None for all.
            return_documents: whether to return the texts, too.
            show_progress_bar: as in `predict`.
            **options: the fields of `PredictOptions`.

        Returns:
            A dictionary for each document: its index `corpus_id`, its `score`, and with
            `return_documents` its `text`. Documents of the same score keep their order, and with
            `errors="nan"` unusable ones come last.

        Raises:
            InvalidTextError: a document cannot be used; the error names each by its index.
            ConfigError: the query cannot be used, the model has several labels, or an option has an
                unusable value.
        """
        pairs = self._ranked_pairs(query, documents, top_k)
        made = _options("rank", options)
        scores = self._predict(pairs, made, show_progress_bar)
        return _ranking(scores, pairs, top_k, return_documents=return_documents)

    async def apredict(self, pairs: Iterable[Any], **options: Unpack[PredictKeywords]) -> Scores:
        """Score pairs like `predict` in other threads, so that the event loop goes on.

        Small calls that run at the same time share batches, as those of `Encoder.aencode` do.
        """
        from mirror_rt.scheduling.tasks import SHARED_TEXTS, run_in_thread, scheduler_of

        made = _options("apredict", options)
        items = self.items(pairs, made.truncation)
        if len(items) > SHARED_TEXTS or "batch_size" in options:
            return await run_in_thread(lambda stop: self._predict(items, made, stop=stop))
        given = made.of_pipeline()
        given.pop("batch_size")
        logits = await scheduler_of(self).aencode(items, **given)
        return self.scores(logits, made.activation)

    async def arank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Unpack[PredictKeywords],
    ) -> Ranking:
        """Rank documents like `rank`, in other threads like `apredict`."""
        pairs = self._ranked_pairs(query, documents, top_k)
        scores = await self.apredict(pairs, **options)
        return _ranking(scores, pairs, top_k, return_documents=return_documents)

    def _ranked_pairs(
        self, query: str, documents: Sequence[str], top_k: int | None
    ) -> list[tuple[str, str]]:
        if self.num_labels != 1:
            raise ConfigError(
                f"the model gives {self.num_labels} scores a pair ({', '.join(self.labels[:5])}), "
                "which have no order: call predict"
            )
        if reason := why_invalid(query):
            raise ConfigError(Setting("query"), f": {reason}")
        if isinstance(documents, str):
            raise ConfigError(field="documents", expected="a list of str", value=documents)
        if top_k is not None and top_k < 1:
            raise ConfigError(field="top_k", expected="at least 1, or None", value=top_k)
        return [(query, document) for document in as_list(documents)]

    def __repr__(self) -> str:
        return f"Reranker({str(self.folder)!r}, num_labels={self.num_labels})"


def _options(owner: str, options: PredictKeywords) -> PredictOptions:
    refuse_unknown(owner, options, PredictKeywords.__annotations__)
    return PredictOptions(**options)


def _ranking(
    scores: Vectors, pairs: list[tuple[str, str]], top_k: int | None, *, return_documents: bool
) -> Ranking:
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()  # NaN last
    ranking: Ranking = [{"corpus_id": i, "score": float(scores[i])} for i in order]
    if return_documents:
        for entry in ranking:
            entry["text"] = pairs[entry["corpus_id"]][1]
    return ranking
