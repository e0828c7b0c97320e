"""Native hot loops of mirror_rt (csrc/bindings.cpp)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def flatten(
    sequences: list[list[int]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Concatenate lists of token ids: (ids int32 [T], offsets int64 [n + 1])."""

def mean_rows(
    table: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    *,
    row_of: npt.NDArray[np.int32] | None = None,
    weights: npt.NDArray[np.float32] | None = None,
    normalize: bool,
) -> npt.NDArray[np.float32]:
    """Average rows of a table [rows, D] for each of n sequences of token ids: float32 [n, D].

    A sequence without tokens, or whose mean is zero, is NaN. IndexError: an id has no row.
    """

def pad_rows(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    *,
    pad_id: int,
    length: int = -1,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Right-pad chosen sequences: (input_ids, attention_mask, token_type_ids).

    Each is int64 [len(rows), length]; length -1 means the longest chosen row.
    """

class WordIds:
    """The token ids of at most `most` words, which spaces end (csrc/tokens/words.h)."""

    def __init__(self, *, most: int) -> None: ...
    def find(
        self, texts: list[str], *, most_tokens: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
        """Join the ids of words: (ids [T], offsets [n + 1], rest [r], unknown words of the rest).

        The rest are texts with a word that is not there, or with more than `most_tokens` ids; their
        rows are empty.
        """

    def add(self, word: str, ids: list[int]) -> None:
        """Add a word that is not there; before one too many, all others are forgotten."""

def find_large_json_value(document: bytes, size: int) -> tuple[int, int, list[tuple[int, bool]]]:
    """Find the first list or text, in no other list, of at least `size` bytes in a document.

    Start and stop of it, 0 and 0 for none, and places at least `size` bytes apart to cut it at:
    (position, False) of a comma between items, (position, True) of a character of a text.
    """

def engine_instruction_sets() -> list[str]:
    """Instruction sets of `NativeEncoder` that this processor has, the most capable last."""

_Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

class NativeEncoder:
    """A transformer that encodes texts (csrc/engine/engine.h)."""

    def __init__(
        self,
        *,
        precision: str,
        heads: int,
        inner: int,
        scale: float,
        epsilon: float,
        activation: str,
        words: npt.NDArray[np.float32],
        positions: npt.NDArray[np.float32],
        norm: _Pair,
        types: npt.NDArray[np.float32] | None = None,
        projection: _Pair | None = None,
        relative: npt.NDArray[np.float32] | None = None,
        skipped_id: int = -1,
        skipped: npt.NDArray[np.float32] | None = None,
        gated: bool = False,
        pre_norm: bool = False,
        key_heads: int,
        size: int,
        word_scale: float = 1.0,
        raw: bool = False,
        centred: bool = True,
        causal: bool = False,
        buckets: npt.NDArray[np.int32] | None = None,
        instruction_set: str = "",
    ) -> None:
        """Take the embeddings: words [vocabulary, E] stay where they are, the rest is copied.

        `positions` is [n, E], or [n, 0] for none, `types` [types, E], `relative` [heads, 2 n - 1]
        by the distance of key from query, and a pair is a weight [inputs, outputs] and its bias,
        or those of a normalisation, which takes the mean off if it is `centred`. `gated` layers
        have twice as many inner columns, the second half of which multiplies the first; with
        `pre_norm`, `out_norm` does not change what layers add to, and with `raw` neither does
        `norm`. Heads have `size` numbers, and there are `key_heads` of keys and values; in
        `causal` attention no token attends to one behind it. `buckets` [2 n - 1] are those of the
        distances of key from query, and do not fall.
        """

    def add_layer(
        self,
        *,
        query_key_value: _Pair,
        attention_out: _Pair,
        attention_norm: _Pair,
        inner: _Pair,
        out: _Pair,
        out_norm: _Pair,
        window: int = 0,
        rotary: npt.NDArray[np.float32] | None = None,
        query_norm: _Pair | None = None,
        key_norm: _Pair | None = None,
        attention_after: _Pair | None = None,
        out_after: _Pair | None = None,
        distances: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Pack the weights of one more layer, which are not kept.

        A token attends to those at most `window` tokens away, or to all for 0. `rotary` is
        [n, size], the cosines and then the sines of each position's angles; it is kept. Of the
        norms of queries and keys [size] the weights alone count; `attention_after` and `out_after`
        normalise what the halves of a layer add. `distances` [buckets, 2 heads * size] are vectors
        of which the first halves times keys, and the second times queries, are added to scores.
        """

    def repeat_layer(self, layer: int) -> None:
        """Add a layer that shares the weights of an earlier one."""

    def run(
        self,
        input_ids: npt.NDArray[np.int64],
        attention_mask: npt.NDArray[np.int64],
        *,
        pooling: str,
        normalize: bool,
        threads: int,
        spins: int,
        types: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Encode rows that are padded on the right: float32 [rows, H].

        `pooling` is `mean`, `cls`, `max`, or `none` for [tokens, H], without padding; `types` are
        the token types, 0 by default. IndexError for an id outside the vocabulary or of a type
        that is not there, and for a text that is empty or too long.
        """

    @property
    def hidden(self) -> int: ...

class NativeVocabulary:
    """The head of a masked language model, pooled over tokens (csrc/engine/vocabulary.h)."""

    def __init__(
        self,
        *,
        precision: str,
        activation: str,
        epsilon: float,
        dense: _Pair,
        norm: _Pair,
        decoder: _Pair,
        instruction_set: str = "",
    ) -> None:
        """Pack the weights, which are not kept: `dense` [H, E] and `decoder` [E, words]."""

    def run(
        self,
        tokens: npt.NDArray[np.float32],
        offsets: npt.NDArray[np.int64],
        *,
        pooling: str,
        twice: bool,
        threads: int,
        spins: int,
    ) -> npt.NDArray[np.float32]:
        """Weigh the words of each text: float32 [texts, words].

        Text i has the vectors [offsets[i], offsets[i + 1]) of `tokens` [n, H]. A logit x above 0
        weighs log(1 + x), or with `twice` log(1 + log(1 + x)), and the weight of a word is the
        largest over the tokens, or with `pooling` of `sum` their sum.
        """

def vector_instruction_sets() -> list[str]:
    """Instruction sets of the functions below that this processor has, the most capable last."""

def non_finite_rows(vectors: npt.NDArray[np.float32]) -> list[int]:
    """Numbers of the rows [n, D] that hold NaN or infinity, ascending."""

def quantize_rows(
    embeddings: npt.NDArray[np.float32],
    starts: npt.NDArray[np.float32],
    steps: npt.NDArray[np.float32],
    *,
    signed: bool,
    instruction_set: str | None = None,
) -> npt.NDArray[np.uint8]:
    """Codes [n, D]: floor((x - starts) / steps) in 0 .. 255, less 128 (as int8 bytes) if signed.

    ValueError names the first row that holds NaN.
    """

def search_codes(
    queries: npt.NDArray[np.int16],
    corpus: npt.NDArray[np.uint8],
    *,
    signed: bool,
    k: int,
    parts: int,
    instruction_set: str | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Largest dot products of queries [q, D] and codes [n, D] (int8 bytes if signed).

    (scores, indices), each [parts, q, k]: of each part of the corpus, searched on a thread each,
    in no order; unused places have index -1. The sums must fit 32 bits.
    """

def search_bits(
    queries: npt.NDArray[np.uint8],
    corpus: npt.NDArray[np.uint8],
    *,
    k: int,
    parts: int,
    instruction_set: str | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Rows of fewest different bits, as `search_codes`; the score is minus their number."""

def half_products(
    queries: npt.NDArray[np.float32],
    rows: npt.NDArray[np.uint16],
    *,
    parts: int,
    instruction_set: str | None = None,
) -> npt.NDArray[np.float32]:
    """Dot products [q, n] of queries [q, D] and float16 rows [n, D], in as many threads as parts.

    A product is the same beside any other rows, and among other queries, of which both times fewer
    than 8 are given, or both times not.
    """

def max_similarities(
    queries: Sequence[npt.NDArray[np.float32]],
    documents: Sequence[npt.NDArray[Any]],
    *,
    threads: int,
    instruction_set: str | None = None,
) -> npt.NDArray[np.float32]:
    """Scores [q, n] of queries [t, D] and documents [t, D]: float32, float16 as uint16, or codes.

    A score is the sum over the query's rows of the largest dot product with a row of the document.
    """

def residual_similarities(
    queries: Sequence[npt.NDArray[np.float32]],
    documents: Sequence[npt.NDArray[np.uint8]],
    centroids: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    *,
    threads: int,
    instruction_set: str | None = None,
) -> npt.NDArray[np.float32]:
    """Scores [q, n] as `max_similarities`, of documents [t, 4 + bytes].

    A row is the number of a centroid [D], an int32, and bytes of residuals, whose weights [256,
    numbers in a byte] are added to it; the sum gets unit length.
    """

def keep_best(
    scores: npt.NDArray[np.float32],
    first: int,
    best_scores: npt.NDArray[np.float32],
    best_indices: npt.NDArray[np.int64],
    *,
    instruction_set: str | None = None,
) -> None:
    """Update heaps [q, k] in place with the scores [q, rows] of rows first, first + 1 ...

    Empty heaps hold -inf and -1; the rows must come in rising order.
    """

def plan_batches(
    lengths: npt.NDArray[np.int64], *, token_budget: int, run_cost: int
) -> npt.NDArray[np.int64]:
    """Ends of the cheapest batches of rows of rising lengths [n]: int64 [batches].

    A batch of r rows of at most L tokens costs r * L + run_cost, and r * L must be within the
    budget unless r is 1.
    """

class InfonceRows:
    """Rows of up to three tensors, one after another; addresses as integers."""

    def __init__(
        self, blocks: Sequence[tuple[int, int]], dim: int, dtype: str, inverse_norms: int
    ) -> None: ...

class InfonceNegatives:
    """See mirror_train.loss.kernel.Negatives; 0 for no ids."""

    def __init__(
        self, n_rows: int, n_columns: int, period: int, row_ids: int, column_ids: int
    ) -> None: ...

class InfoncePairs:
    """See mirror_train.loss.kernel.Pairs."""

    def __init__(self, count: int, shift: int, mutual: bool) -> None: ...

class InfonceTeacher:
    """See csrc/infonce/infonce.h; it does not keep the rows, nor what lies at the address."""

    def __init__(self, rows: InfonceRows, a: int, scale: float) -> None: ...

class InfonceExecution:
    """Instruction set and threads; ValueError where the processor lacks it."""

    def __init__(self, instruction_set: str, threads: int) -> None: ...
    def padded_dim(self, dim: int) -> int: ...
    def padded_rows(self, rows: int) -> int: ...

def instruction_sets() -> list[str]:
    """Instruction sets compiled in that this processor has, the most capable last."""

def best_instruction_set(pairs: bool) -> str | None:
    """The most capable one for float32 operands, or for bfloat16 pairs (None for none)."""

def infonce_inverse_norms(rows: InfonceRows, execution: InfonceExecution, out: int) -> None: ...
def infonce_logsumexp(
    rows: InfonceRows,
    columns: InfonceRows | None,
    negatives: InfonceNegatives,
    scale: float,
    execution: InfonceExecution,
    n: int,
) -> None: ...
def infonce_objective(
    rows: InfonceRows,
    partners: InfonceRows,
    pairs: InfoncePairs,
    n: int,
    scale: float,
    decoupled: bool,
    factor: float,
    execution: InfonceExecution,
    weights: int,
    log_weights: int,
) -> float: ...
def infonce_contract(
    rows: InfonceRows,
    columns: InfonceRows | None,
    negatives: InfonceNegatives,
    a: int,
    b: int,
    scale: float,
    teacher: InfonceTeacher | None,
    execution: InfonceExecution,
    sums: int,
    column_sums: int,
) -> float: ...
def infonce_finish(
    sums: int,
    sums_stride: int,
    rows: InfonceRows,
    partners: InfonceRows,
    pairs: InfoncePairs,
    weights: int,
    factor: float,
    execution: InfonceExecution,
    gradients: Sequence[int],
) -> None: ...
