"""The sparse encoder of the runtime: weights of words, for an index of words."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import WORDS
from mirror_rt.encoding.loaded_bundle import LoadedBundle, open_model
from mirror_rt.errors import ConfigError, InvalidTextError, Setting
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.keywords import refuse_unknown, with_visible_options
from mirror_rt.pipeline.inputs import Texts, as_list
from mirror_rt.pipeline.options import EncodeKeywords, EncodePlan, add_prompt
from mirror_rt.pipeline.pipeline import Pipeline, Vectors
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES, Prompts
from mirror_rt.pipeline.rows_to_run import RowsToRun
from mirror_rt.progress import progress_bar
from mirror_rt.sparse.options import SparseKeywords, SparseOptions
from mirror_rt.sparse.query_table import QueryTable
from mirror_rt.sparse.vectors import SparseVector, SparseVectors, strongest_words
from mirror_rt.sparse.word_head import WordModel
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.windows import TextWindow, one_ahead, text_windows

# The weights that are held at a time, of all words of some texts: 64 MB.
_MOST_WEIGHTS = 1 << 24


@with_visible_options(LoadOptions, SparseOptions)
class SparseEncoder(LoadedBundle):
    """A loaded sparse encoder (SPLADE): `SparseEncoder.load(path).encode(texts)`.

    It is safe to use from several threads at once. `pipeline.model` gives the weights of all words,
    and so does `Scheduler(sparse_encoder)`.
    """

    _kinds = (WORDS,)

    def __init__(self, description: ModelDescription, options: LoadOptions) -> None:
        super().__init__(description, options)
        folder, manifest = self.folder, self.manifest
        self._model = open_model(self.description, options)
        model = WordModel(self._model, self.description, options)
        tokenizer = TextTokenizer.from_file(
            folder / manifest.tokenizer,
            max_length=manifest.max_length,
            pad_id=manifest.pad_id,
            settings=description.tokenizer,
        )
        tokenizer.check_ids(model.dimension)
        prompts = Prompts(manifest.prompts, manifest.default_prompt_name)
        self.pipeline = Pipeline(tokenizer, model, normalize=False, prompts=prompts)
        self._queries = table = QueryTable.read(self.description)
        self.query_pipeline = self.pipeline
        """Tokenises queries: the same as `pipeline`, unless there is a table for them."""
        if table is not None:
            self.query_pipeline = Pipeline(table.tokenizer, model, normalize=False)

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> SparseEncoder:
        """Load a sparse encoder from a folder or by its name on a hub.

        Args:
            path_or_name: a folder written by `mirror-rt export`, or one that sentence-transformers
                wrote, with weights in safetensors.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: the folder is none of a sparse encoder, its head is not known, or it is
                from a newer version, incomplete or changed.
            ConfigError, ProviderError, MissingDependencyError: as `Encoder.load`.
        """
        return cls._load(path_or_name, keywords)

    @classmethod
    def _describe(cls, folder: Path, options: LoadOptions) -> ModelDescription:
        if options.pooling != "auto":
            raise ConfigError(Setting("pooling", options.pooling), " is for encoders of vectors")
        if options.cache is not None:
            raise ConfigError(Setting("cache", options.cache), " keeps no sparse vectors")
        return super()._describe(folder, options)

    @property
    def dimension(self) -> int:
        """The number V of words."""
        return self.pipeline.model.dimension

    @property
    def max_length(self) -> int:
        """Most tokens of a text, special tokens included; see `on_too_long` for longer texts."""
        return self.pipeline.tokenizer.max_length

    @property
    def prompts(self) -> Prompts:
        """The prompts of the model."""
        return self.pipeline.defaults.prompts

    @property
    def looks_up_queries(self) -> bool:
        """Whether `encode_query` takes the weights of a table, without running the model."""
        return self._queries is not None

    def encode(
        self,
        inputs: Texts,
        show_progress_bar: bool | None = None,
        **options: Unpack[SparseKeywords],
    ) -> SparseVectors:
        """Encode texts to sparse vectors, as documents where queries have a way of their own.

        Args:
            inputs: any iterable of strings; a single string counts as a list of one.
            show_progress_bar: None shows one if the logger `mirror_rt` is at level INFO.
            **options: the fields of `SparseOptions`.

        Returns:
            The vectors of the texts, in their order.

        Raises:
            InvalidTextError: a text is not a string, is empty or blank, is not valid Unicode, or
                is too long and `on_too_long` is `"error"`.
            NonFiniteError: the model gives a text a weight that is not finite.
            ConfigError: an option has an unusable value.
        """
        refuse_unknown("encode", options, SparseKeywords.__annotations__)
        return self._encode(as_list(inputs), SparseOptions(**options), show_progress_bar)

    def encode_document(self, inputs: Texts, **options: Unpack[SparseKeywords]) -> SparseVectors:
        """Encode with the prompt `document` or `passage`, unless there is none or one is given."""
        return self.encode(inputs, **self._with_prompt(DOCUMENT_NAMES, options))

    def encode_query(self, inputs: Texts, **options: Unpack[SparseKeywords]) -> SparseVectors:
        """Encode with the prompt `query`, unless there is none or one is given.

        With a table for queries, the words of a query have the weights of the table, and the model
        does not run.
        """
        options = self._with_prompt(QUERY_NAMES, options)
        refuse_unknown("encode_query", options, SparseKeywords.__annotations__)
        return self._encode(as_list(inputs), SparseOptions(**options), query=True)

    def encode_windows(
        self,
        stream: Iterable[TextWindow],
        options: SparseOptions,
        *,
        query: bool = False,
        pipeline: Pipeline | None = None,
    ) -> Generator[list[SparseVector], None, None]:
        """Encode window after window, as queries or not; one is tokenised while another runs.

        Args:
            stream: the windows; texts that cannot be encoded are refused as `options` say.
            options: those of a call.
            query: look the words up where there is a table for queries.
            pipeline: tokenises in place of `pipeline`, or of `query_pipeline` for queries.
        """
        table = self._queries if query else None
        plan = self.pipeline.plan(**options.of_pipeline())
        pipeline = pipeline or (self.query_pipeline if query else self.pipeline)
        with closing(one_ahead(partial(pipeline.tokenize, plan=plan), stream)) as tokenized:
            for rows in tokenized:
                if table is None:
                    yield self._run(rows, plan, options)
                else:
                    yield _in_order(rows, self._weigh(table, rows, options))

    def decode(self, vector: SparseVector, top_k: int | None = None) -> list[tuple[str, float]]:
        """Return the words of a vector with their weights, the largest first.

        Elasticsearch's field `sparse_vector` takes `dict(encoder.decode(vector))`.
        """
        indices, values = vector.strongest(top_k)
        order = np.argsort(-values, kind="stable")
        names = self.pipeline.tokenizer.names_of(indices[order].tolist())
        return list(zip(names, values[order].tolist(), strict=True))

    def take(self, weights: Vectors, options: SparseOptions) -> list[SparseVector]:
        """Return the words of dense weights [n, V], as `pipeline.model` gives them, that count."""
        return strongest_words(weights, options.threshold, self._most(options))

    def _most(self, options: SparseOptions) -> int | None:
        words = self.manifest.words
        assert words is not None
        return options.max_active_dims or words.active

    def _with_prompt(self, names: Sequence[str], options: SparseKeywords) -> SparseKeywords:
        found = add_prompt(self.prompts, names, cast(EncodeKeywords, options))
        return cast(SparseKeywords, found)

    def _encode(
        self,
        texts: list[str],
        options: SparseOptions,
        show_progress_bar: bool | None = False,
        *,
        query: bool = False,
    ) -> SparseVectors:
        rows = list[SparseVector]()
        windows = _checked(texts, options)
        with (
            closing(progress_bar(len(texts), show_progress_bar)) as bar,
            closing(self.encode_windows(windows, options, query=query)) as encoded,
        ):
            for vectors in encoded:
                rows += vectors
                bar.update(len(vectors))
        return SparseVectors.join(rows, self.dimension)

    def _run(self, rows: TokenRows, plan: EncodePlan, options: SparseOptions) -> list[SparseVector]:
        """Run the rows of a window: a vector for each text, without words for one with no row."""
        work, most = RowsToRun(rows.tokens), max(1, _MOST_WEIGHTS // self.dimension)
        found: dict[int, SparseVector] = {}
        for batch in self.pipeline.batches(rows.tokens, plan, work.rows):
            for part in np.split(batch, range(most, len(batch), most)):
                weights, bad = self.pipeline.run(self.pipeline.pad(rows.tokens, part))
                if bad and (error := plan.non_finite_error(work.texts_with(part[bad], rows))):
                    raise error
                weights[bad] = 0
                found |= zip(part.tolist(), self.take(weights, options), strict=True)
        first = range(len(rows.tokens)) if work.first is None else work.first.tolist()
        return _in_order(rows, [found[row] for row in first])

    def _weigh(
        self, table: QueryTable, rows: TokenRows, options: SparseOptions
    ) -> list[SparseVector]:
        """Look up the words of the queries of a window."""
        most = self._most(options)
        return [
            vector.above(options.threshold).strongest(most) for vector in table.weigh(rows.tokens)
        ]

    def __repr__(self) -> str:
        return f"SparseEncoder({str(self.folder)!r}, dimension={self.dimension})"


def _checked(texts: list[str], options: SparseOptions) -> list[TextWindow]:
    """Cut texts into windows; InvalidTextError names those that cannot be encoded."""
    windows = list(text_windows(texts))
    if options.errors == "raise" and any(window.invalid for window in windows):
        raise InvalidTextError([pair for window in windows for pair in window.numbered()])
    return windows


def _in_order(rows: TokenRows, vectors: list[SparseVector]) -> list[SparseVector]:
    """Return the vectors of all texts of a window: of no words where a text has no row."""
    none = SparseVector(np.empty(0, np.int32), np.empty(0, np.float32))
    found = [none] * len(rows.truncated)
    for text, vector in zip(rows.text_of_rows().tolist(), vectors, strict=True):
        found[text] = vector
    return found
