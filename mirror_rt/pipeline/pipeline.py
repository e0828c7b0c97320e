"""The pipeline from texts to vectors: tokenise, batch, run the model, restore the order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from mirror_rt import _core
from mirror_rt.errors import ConfigError, InvalidTextError, Setting
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions, EncodePlan, ModelDefaults
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.pipeline.results import EncodedTexts, Indices, join
from mirror_rt.pipeline.rows_to_run import RowsToRun
from mirror_rt.progress import progress_bar
from mirror_rt.tokens.batching import plan_batches
from mirror_rt.tokens.chunking import TokenRows, id_rows, pool_chunks, token_rows
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens, mask_and_types
from mirror_rt.tokens.tokenization import Stopped, TextTokenizer
from mirror_rt.tokens.windows import TextWindow, one_ahead, parallel_map
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    from mirror_rt.inference.vector_cache import VectorCache

__all__ = ["EncodedTexts", "Pipeline", "Stopped", "Vectors", "join"]

logger = logging.getLogger("mirror_rt")

# Is told of each batch of token ids that has run.
OnRun = Callable[[PaddedBatch], object] | None
_MANY_TOKENS = 50  # of which a share says something


class Pipeline:
    """Takes texts through a model, window by window.

    Args:
        tokenizer: has the length limit of the model.
        model: makes a vector of each row of tokens.
        pad_to: pad every text to this many tokens; None to pad to the longest of a batch.
        normalize: whether vectors are of unit length by default.
        prompts: prompts of the model.
        cache: keeps vectors of the model; the pipeline's owner closes it.
    """

    unit = "texts"  # the name of the inputs in messages

    def __init__(
        self,
        tokenizer: TextTokenizer,
        model: PooledModel,
        *,
        pad_to: int | None = None,
        normalize: bool = True,
        prompts: Prompts | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model = model
        self.pad_to = pad_to
        self.cache = cache
        self._has_short_way = pad_to is None and cache is None
        self.defaults = ModelDefaults(model.dimension, normalize, prompts or Prompts())
        self._said: set[str] = set()
        self._saying = threading.RLock()  # a signal handler may encode, too

    def plan(self, **options: Unpack[EncodeKeywords]) -> EncodePlan:
        """Check the options of a call, which are the fields of `EncodeOptions`."""
        try:
            return _plan(self.defaults, **options)  # type: ignore[arg-type]  # or it raises
        except TypeError:  # one of them is an array or a list, which no cache can look up
            refuse_unknown("encode", options, EncodeKeywords.__annotations__)
            return EncodePlan.make(self.defaults, EncodeOptions(**options))

    def plan_for_tokens(self, **options: Unpack[EncodeKeywords]) -> EncodePlan:
        """Check the options of a call for token vectors, as `plan` does."""
        plan = self.plan(**options)
        self.model.check_token_vectors()
        if plan.on_too_long == "chunk":
            raise ConfigError(
                Setting("on_too_long", "chunk"), " joins chunks to one vector: cut or refuse"
            )
        return plan

    def tokenize(
        self, inputs: list[Any] | TextWindow, plan: EncodePlan, stop: threading.Event | None = None
    ) -> TokenRows:
        """Tokenise a window of checked texts; or check a list of texts or of token ids first."""
        if isinstance(inputs, TextWindow):
            rows = token_rows(self.tokenizer, inputs, plan.prompt, plan.on_too_long, stop)
        elif inputs and isinstance(inputs[0], list):
            rows = id_rows(self.tokenizer, inputs)
        else:
            ids = self.tokenizer.short_ids(inputs[0], plan.prompt) if len(inputs) == 1 else None
            if ids is not None:
                return TokenRows(0, RaggedTokens.from_lists([ids]), np.zeros(1, np.bool_))
            window = TextWindow(0, inputs, self.tokenizer.find_invalid(inputs))
            return self.tokenize(window, plan, stop)
        if rows.text is not None or np.count_nonzero(rows.truncated):
            self._report(rows, plan)
        self._report_unknown(rows.tokens)
        return rows

    def pad(self, tokens: RaggedTokens, rows: Indices | None = None) -> PaddedBatch:
        """Pad rows (None for all) to `pad_to` tokens, or to the longest of them."""
        return tokens.pad(rows, pad_id=self.tokenizer.pad_id, length=self.pad_to)

    def run(
        self, batch: PaddedBatch, *, normalize: bool = False, on_run: OnRun = None
    ) -> tuple[Vectors, list[int]]:
        """Run a batch: float32 [rows, D], and the indices of the rows that are NaN.

        A row that is not finite runs again in full precision, and is all NaN if that does not help.
        """
        vectors = self.model.run_batch(batch, normalize=normalize)
        if bad := _core.non_finite_rows(vectors):
            again = PaddedBatch(*(array[bad] for array in batch))
            exact = self.model.run_exactly(again, normalize=normalize)
            vectors[bad] = np.nan if exact is None else exact
            bad = _core.non_finite_rows(vectors)
            vectors[bad] = np.nan
        if on_run is not None:
            on_run(batch)
        return vectors, bad

    def run_token_vectors(self, batch: PaddedBatch) -> tuple[list[Vectors], list[int]]:
        """Run a batch: float32 [tokens, H] of each row, and the indices of non-finite ones.

        The vectors of the special tokens are among them.
        """
        lengths = batch.attention_mask.sum(axis=1)
        # Return copies, so that the vectors of a row do not keep those of the whole batch.
        vectors = [
            of_tokens[:length].astype(np.float32)
            for of_tokens, length in zip(self.model.token_vectors(batch), lengths, strict=True)
        ]
        return vectors, [i for i, row in enumerate(vectors) if _core.non_finite_rows(row)]

    def finish(
        self, vectors: Vectors, rows: TokenRows, plan: EncodePlan, *, normalized: bool = False
    ) -> EncodedTexts:
        """Make embeddings of texts from the vectors of their rows, float32 [m, D] or cut already.

        `normalized` says that `run` has normalised them if the plan asks for it. Callers with other
        plans share the batches of a scheduler, so its vectors come as pooled.
        """
        if plan.normalize and not normalized:
            vectors = normalize_rows(vectors)
        vectors = np.ascontiguousarray(vectors[:, : plan.dimension])
        pooled = pool_chunks(vectors, rows, normalize=plan.normalize)
        embeddings = self._embeddings(pooled, plan)
        return EncodedTexts(embeddings, rows.token_counts, rows.chunks, rows.truncated)

    def encode_one(self, text: str, plan: EncodePlan) -> Embeddings | None:
        """Encode a short text to [D], as `encode` does; None if it is not valid, short and whole.

        A run of the model leaves little of Python's code and data in the caches of the processor,
        so each step behind it costs microseconds. A text that is one row needs few of them.
        """
        if not self._has_short_way or (ids := self.tokenizer.short_ids(text, plan.prompt)) is None:
            return None
        batch = PaddedBatch(np.array([ids], dtype=np.int64), *mask_and_types(len(ids)))
        vectors, bad = self.run(batch, normalize=plan.normalize)
        if bad and (error := plan.non_finite_error(bad)):
            raise error
        embedding: Embeddings = self._embeddings(vectors, plan)[0]
        return embedding

    def encode(
        self,
        texts: Iterable[TextWindow],
        plan: EncodePlan,
        show_progress_bar: bool | None = False,
        stop: threading.Event | None = None,
    ) -> EncodedTexts:
        """Encode all windows of a call; `stop`, once set, ends it with `Stopped` after a batch."""
        windows = list(texts)
        n = sum([len(window.texts) for window in windows])
        if plan.errors == "raise" and (bad := [window for window in windows if window.invalid]):
            raise InvalidTextError([pair for window in bad for pair in window.numbered()])
        bar = progress_bar(n, show_progress_bar)
        try:
            if len(windows) == 1:
                rows = self.tokenize(windows[0], plan)
                return self._encode_rows(rows, plan, count=bar.update, stop=stop)
            return join(self.encode_windows(windows, plan, count=bar.update, stop=stop), n, plan)
        finally:
            bar.close()

    def encode_windows(
        self,
        stream: Iterable[TextWindow],
        plan: EncodePlan,
        *,
        count: Callable[[int], object] | None = None,
        on_run: OnRun = None,
        stop: threading.Event | None = None,
    ) -> Iterator[EncodedTexts]:
        """Encode window after window; the next one is tokenised while one runs.

        `count` is called with the number of texts that were finished since the last call, `on_run`
        with every batch that has run (from several threads if runs are parallel). Once `stop` is
        set, the call ends with `Stopped` before the next batch.
        """
        with closing(one_ahead(partial(self.tokenize, plan=plan), stream)) as tokenized:
            for rows in tokenized:
                yield self._encode_rows(rows, plan, count=count, on_run=on_run, stop=stop)

    def batches(self, tokens: RaggedTokens, plan: EncodePlan, rows: Indices) -> list[Indices]:
        """Split `rows` into batches: int64 [b] for each batch, the indices of its rows."""
        lengths = tokens.lengths[rows]
        if self.pad_to is not None:
            lengths = np.full_like(lengths, self.pad_to)
        budget, cost = plan.token_budget, self.model.run_cost
        batches = plan_batches(lengths, token_budget=budget, run_cost=cost)
        return batches if len(rows) == len(tokens) else [rows[batch] for batch in batches]

    def _encode_rows(
        self,
        rows: TokenRows,
        plan: EncodePlan,
        *,
        count: Callable[[int], object] | None = None,
        on_run: OnRun = None,
        stop: threading.Event | None = None,
    ) -> EncodedTexts:
        """Run the rows of a window batch by batch, and put their vectors in order."""
        whole = self.model.run_rows(rows.tokens, normalize=plan.normalize)
        if whole is not None:
            return self._finish_whole(whole, rows, plan, count=count, on_run=on_run)
        work = RowsToRun(rows.tokens, self.cache)
        vectors = np.empty((len(rows.tokens), plan.dimension), np.float32)
        if work.found:
            vectors[list(work.found)] = self._of_pooled(np.stack([*work.found.values()]), plan)
        run = partial(self.run, normalize=plan.normalize and self.cache is None, on_run=on_run)
        batches = self.batches(rows.tokens, plan, work.rows)
        padded = map(partial(self.pad, rows.tokens), batches)
        left, ends = len(rows.truncated), work.texts_done(rows)
        with parallel_map(min(self.model.parallel_runs, len(batches))) as run_each:
            for batch, (result, bad) in zip(batches, run_each(run, padded), strict=True):
                if bad and (error := plan.non_finite_error(work.texts_with(batch[bad], rows))):
                    raise error
                if self.cache is not None:
                    work.store(batch, result)
                    result = self._of_pooled(result, plan)
                vectors[batch] = result[:, : plan.dimension]
                if count is not None:
                    done = len(batch) if ends is None else int(ends[batch].sum())
                    left -= done
                    count(done)
                if stop is not None and stop.is_set():
                    raise Stopped
        if count is not None and left:
            count(left)
        return self.finish(work.spread(vectors), rows, plan, normalized=True)

    def _of_pooled(self, vectors: Vectors, plan: EncodePlan) -> Vectors:
        """Make the result of `run`, cut to the plan's dimension, of pooled vectors."""
        return (normalize_rows(vectors) if plan.normalize else vectors)[:, : plan.dimension]

    def _finish_whole(
        self,
        vectors: Vectors,
        rows: TokenRows,
        plan: EncodePlan,
        *,
        count: Callable[[int], object] | None,
        on_run: OnRun,
    ) -> EncodedTexts:
        """Finish the rows of a window that ran all at once, as `_encode_rows` does."""
        bad = _core.non_finite_rows(vectors)
        vectors[bad] = np.nan
        if bad and (error := plan.non_finite_error(rows.numbered(bad))):
            raise error
        if on_run is not None:
            ids = rows.tokens.ids[None].astype(np.int64)
            on_run(PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids)))
        if count is not None:
            count(len(rows.truncated))
        return self.finish(vectors, rows, plan, normalized=True)

    def _embeddings(self, vectors: Vectors, plan: EncodePlan) -> Embeddings:
        """Cut the vectors of texts to `plan.dimension`, and convert them to the precision."""
        if plan.dimension < self.model.dimension:
            vectors = vectors[:, : plan.dimension]
            if plan.normalize:
                vectors = normalize_rows(vectors)
        return plan.quantizer(vectors)

    def _report(self, rows: TokenRows, plan: EncodePlan) -> None:
        """Raise an error for texts that cannot be encoded, and log how long ones were treated."""
        if rows.invalid and plan.errors == "raise":
            raise InvalidTextError(list(rows.invalid))
        n, limit = len(rows.truncated), self.tokenizer.max_length
        if rows.invalid and plan.errors == "zero":
            message = (
                f"%d of %d {self.unit} cannot be encoded, and get vectors of zeros (said once)"
            )
            self._say_once(logging.WARNING, message, len(rows.invalid), n)
        too_long = f"%d of %d {self.unit} are longer than %d tokens and were"
        if plan.tells_of_cut and (cut := int(rows.truncated.sum())):
            self._say_once(logging.WARNING, f"{too_long} cut there (said once)", cut, n, limit)
        if rows.weights is not None:
            split = rows.chunks[rows.chunks > 1]
            message = f"{too_long} encoded in %d chunks (said once)"
            self._say_once(logging.INFO, message, len(split), n, limit, int(split.sum()))

    def _report_unknown(self, tokens: RaggedTokens) -> None:
        """Log that a model hardly knows the tokens of texts, if those are enough to tell."""
        own = len(tokens.ids) - self.tokenizer.special_tokens * len(tokens)
        if own < _MANY_TOKENS:
            return
        unknown = int(np.count_nonzero(tokens.ids == self.tokenizer.unknown_id))
        if 2 * unknown > own:
            message = (
                f"%d of %d tokens of these {self.unit} are unknown to the model, which was not "
                "made for their language or script: its vectors say little (said once)"
            )
            self._say_once(logging.WARNING, message, unknown, own)

    def _say_once(self, level: int, message: str, *values: int) -> None:
        with self._saying:
            if message in self._said:
                return
            self._said.add(message)
        logger.log(level, message, *values)


@lru_cache(maxsize=64, typed=True)
def _plan(defaults: ModelDefaults, **options: Unpack[EncodeKeywords]) -> EncodePlan:
    return EncodePlan.make(defaults, EncodeOptions(**options))
