"""Encode windows by a model that gives a text several numbers or vectors: a line of JSON for each.

Of a sparse encoder the line has the words of a text and their weights, of a late-interaction model
the vectors of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.bulk.options import BulkConfig
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import DENSE, LATE, WORDS
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.late_interaction.encoder import MultiVectorEncoder
from mirror_rt.late_interaction.token_encoder import OPTIONS, Side, TokenEncoder
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions, add_prompt
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES
from mirror_rt.sparse.options import SparseKeywords, SparseOptions
from mirror_rt.sparse.sparse_encoder import SparseEncoder
from mirror_rt.tokens.windows import TextWindow

Fields = Mapping[str, npt.NDArray[Any]]  # the arrays of a line, by their names
EncodeLines = Callable[[Iterable[TextWindow]], Iterator[list[Fields]]]

WINDOW_TEXTS = 512  # whose token vectors take some 50 MB
_WORDS, _TOKENS = ("max_active_dims", "threshold"), ("pool_factor",)
_OF_ENCODING = tuple(EncodeOptions.__dataclass_fields__)
# The options of a job and of its vectors that only some kinds of models take.
_TAKEN = {
    DENSE: ("resume", "processes", *_OF_ENCODING),
    WORDS: ("task", *SparseOptions.__dataclass_fields__),
    LATE: ("task", *_TOKENS, *OPTIONS),
}


def given_options(config: BulkConfig, described: ModelDescription) -> dict[str, Any]:
    """Return the options that differ from their defaults; ConfigError if the model takes none."""
    kind, given = described.bundle.kind, dict[str, Any]()
    own = ("resume", "processes", "task", *_WORDS, *_TOKENS)
    for values, names in ((config, own), (config.options, _OF_ENCODING)):
        for name in names:
            default: Any = type(values).__dataclass_fields__[name].default
            if not np.array_equal(value := getattr(values, name), default):
                given[name] = value
    for name in given:
        if name not in _TAKEN[kind]:
            raise ConfigError(Setting(name), f" is not for a model that {kind.does}")
    if given.get("task") == "query" and "pool_factor" in given:
        raise ConfigError(Setting("pool_factor"), " is for documents: a query keeps its vectors")
    if kind is not DENSE and config.output != "-" and Path(config.output).suffix != ".jsonl":
        expected = f"NAME.jsonl or -, as the model {kind.does}"
        raise ConfigError(field="output", expected=expected, value=config.output)
    return given


@contextmanager
def open_lines(
    config: BulkConfig, described: ModelDescription, given: dict[str, Any]
) -> Iterator[tuple[EncodeLines, int]]:
    """Load a model; give a block the function that encodes windows, and the dimension."""
    side: Side = given.pop("task", "document")
    if described.bundle.kind is WORDS:
        with SparseEncoder._load_whole(described.folder, config.load) as words:
            names = QUERY_NAMES if side == "query" else DOCUMENT_NAMES
            keywords = cast(SparseKeywords, add_prompt(words.prompts, names, cast(Any, given)))
            encode = partial(_words, words, SparseOptions(**keywords), side == "query")
            yield encode, words.dimension
    else:
        with MultiVectorEncoder._load_whole(described.folder, config.load) as late:
            pooling = (given.pop("pool_factor"), 1) if "pool_factor" in given else None
            options = cast(EncodeKeywords, given)
            yield partial(_tokens, late.encoder, side, options, pooling), late.dimension


def _words(
    encoder: SparseEncoder, options: SparseOptions, query: bool, stream: Iterable[TextWindow]
) -> Iterator[list[Fields]]:
    for vectors in encoder.encode_windows(stream, options, query=query):
        yield [vector._asdict() for vector in vectors]


def _tokens(
    encoder: TokenEncoder,
    side: Side,
    options: EncodeKeywords,
    pooling: tuple[float, int] | None,
    stream: Iterable[TextWindow],
) -> Iterator[list[Fields]]:
    for window in stream:
        found = encoder.encode(side, window, options, pooling)
        yield [{"embeddings": vectors} for vectors in found]
