"""Distil an encoder to a static one: a vector for each token, whose mean is that of a text.

The method is model2vec's (https://github.com/MinishLab/model2vec): each token of the vocabulary is
encoded by itself, the vectors are reduced by PCA, and weighted by the frequency of the tokens as
SIF weighs them (Arora et al., ICLR 2017). Two things are different: the mean and the principal
components are those of tokens as often as they occur in texts, and the first components, which all
frequent tokens share, are left out (Mu and Viswanath, ICLR 2018).
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import MOST_TOKENS, Layout, Manifest, Variant, record_files
from mirror_rt.bundle.model_card import write_model_card
from mirror_rt.bundle.static_files import TABLE, TABLE_NAMES, declare_static
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError, require
from mirror_rt.io.atomic import check_free, new_folder, sha256, write_json
from mirror_rt.io.rows import read_texts
from mirror_rt.io.tensors import write_tensors
from mirror_rt.languages.tags import listed_language
from mirror_rt.progress import progress_bar
from mirror_rt.schema import check_rules, least

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
# The frequency at which a weight is a half. Zipf's law over the ids of tokens knows them so badly
# that less weight on frequent ones is better (benchmarks/results/static-2026-11-25.md).
_HALF_COUNTED, _HALF_GUESSED = 5e-4, 3e-5
_DIMENSIONS_PER_COMPONENT = 100  # for each hundred, one of the first components is left out
_CHUNK = 4096  # vectors of float64 at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """Say which static encoder to make.

    Attributes:
        words: a language, whose frequent words (of `wordfreq`) get vectors of their own, and whose
            tokens are weighted by how often they occur in them; or a file of words, the most
            frequent first. By default only the tokens of the vocabulary have vectors, and their
            frequencies are guessed by Zipf's law.
        top: most words to take.
        dimension: most dimensions of the vectors.
    """

    words: str | None = None
    top: Annotated[int, least(1)] = 30_000
    dimension: Annotated[int, least(1)] = 256

    def __post_init__(self) -> None:
        check_rules(self)


def distill(
    encoder: Encoder,
    out: Path,
    config: DistillConfig,
    *,
    overwrite: bool = False,
    show_progress_bar: bool | None = None,
) -> Manifest:
    """Write the static encoder of an encoder; model2vec and sentence-transformers read it, too.

    Args:
        encoder: the encoder to distil.
        out: folder to write, whole or not at all.
        config: says which static encoder.
        overwrite: replace an existing folder.
        show_progress_bar: as in `Encoder.encode`.

    Raises:
        ConfigError: the encoder is static already, or there are no words of the language.
        DataError: the file of words cannot be read.
        MissingDependencyError: words of a language are asked for without wordfreq.
        OutputExistsError: the folder exists.
    """
    check_free(out, overwrite=overwrite)
    if encoder.manifest.is_static:
        raise ConfigError(f"{encoder.folder} is a static encoder already")
    words = _words(config)
    tokenizer, rows, parts = _tokens(encoder, words)
    vectors = _encode(encoder, [row for row in rows if row], show_progress_bar)
    counted = _frequencies(tokenizer, len(rows), parts, words)
    half = _HALF_COUNTED if words else _HALF_GUESSED
    run = np.flatnonzero([bool(row) for row in rows])
    reduced = _reduce(vectors, counted[run], half, config.dimension)
    table = np.zeros((len(rows), reduced.shape[1]), np.float32)
    table[run] = reduced
    with new_folder(out, overwrite=overwrite) as folder:
        write_tensors(folder / TABLE, {TABLE_NAMES[0]: table})
        tokenizer.save(str(folder / Layout.tokenizer), pretty=False)
        declare_static(folder, table.shape[1])
        manifest = _manifest(folder, encoder, config, table)
        write_json(folder / Layout.manifest, manifest.to_dict())
        write_model_card(folder, manifest)
    return manifest


def _words(config: DistillConfig) -> dict[str, float]:
    """Return the words to add, and how often each occurs among all of them."""
    if config.words is None:
        return {}
    if Path(config.words).is_file():
        listed = list(dict.fromkeys(map(str.strip, read_texts(config.words, config.top))))
        occurrences = [1 / (rank + 2) for rank in range(len(listed))]  # Zipf's law
    else:
        wordfreq = require("wordfreq", extra="demo", purpose="--words")
        language = listed_language(wordfreq, config.words)
        listed = wordfreq.top_n_list(language, config.top)
        listing = wordfreq.get_frequency_dict(language)  # word_frequency needs jieba for Chinese
        occurrences = [listing[word] for word in listed]
    return dict(zip(listed, occurrences, strict=True))


def _tokens(
    encoder: Encoder, words: dict[str, float]
) -> tuple[Tokenizer, list[list[int]], dict[int, list[int]]]:
    """Return the tokenizer with the words in it, and the ids to encode for each of its tokens.

    Each row is a token, or the tokens of a word, between special tokens; empty for a special token
    and an unused one, whose vectors are zero. Last come the tokens of the words by their new ids.
    """
    from tokenizers import Tokenizer

    state = json.loads((encoder.folder / encoder.manifest.tokenizer).read_bytes())
    state |= {"truncation": None, "padding": None, "post_processor": None}
    own = Tokenizer.from_str(json.dumps(state))
    before, _, after = encoder.pipeline.tokenizer.framed(["a"])
    names = own.get_vocab()
    special = {one["id"] for one in state.get("added_tokens", ()) if one.get("special")}
    special |= {i for name, i in names.items() if name.startswith(("[unused", "<unused"))}
    plain = set(names.values()) - special
    rows = [
        [*before.tolist(), i, *after.tolist()] if i in plain else []
        for i in range(max(names.values()) + 1)
    ]
    added = _added(own, words, special)
    extended = _extend(state, added)
    found = extended.get_vocab() if added else names
    if any(found.get(name) != i for name, i in names.items()):
        logger.warning(
            "none of %d words is added: this kind of tokenizer takes no more", len(words)
        )
        return own, rows, {}
    rows += [[]] * (max(found.values()) + 1 - len(rows))
    parts = {found[form]: tokens for form, tokens in added.items()}
    for i, tokens in parts.items():
        rows[i] = [*before.tolist(), *tokens, *after.tolist()]
    return extended, rows, parts


def _added(
    tokenizer: Tokenizer, words: dict[str, float], special: set[int]
) -> dict[str, list[int]]:
    """Return the form within a text of each word that is not one token already, and its tokens."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if splitter is None:
        if words:
            logger.warning("none of %d words is added: the tokenizer knows no words", len(words))
        return {}
    first = len(tokenizer.encode("a").ids)
    found: dict[str, list[int]] = {}
    left_out: list[str] = []
    for word in words:
        text = f"a {word}"
        parts = splitter.pre_tokenize_str(normalizer.normalize_str(text) if normalizer else text)
        tokens = tokenizer.encode(text).ids[first:]
        # Unigram may cut a word that its vocabulary has: a second entry would change its id.
        new = len(parts) == 2 and tokenizer.token_to_id(parts[1][0]) is None
        if new and len(tokens) > 1 and not special & set(tokens):
            found[parts[1][0]] = tokens
        elif len(parts) != 2 or special & set(tokens):
            left_out.append(word)
    if left_out:
        shown = ", ".join(repr(word) for word in left_out[:5])
        logger.warning(
            "%d of %d words are not added, as the tokenizer cuts them into several words or does "
            "not know them: %s", len(left_out), len(words), shown,
        )  # fmt: skip
    return found


def _extend(state: dict[str, Any], added: dict[str, list[int]]) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json that takes further words whole."""
    from tokenizers import Tokenizer

    model = state["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: a word costs a little less than its tokens
        vocabulary += [
            [form, sum(vocabulary[i][1] for i in tokens if i < len(vocabulary)) + 1e-3]
            for form, tokens in added.items()
        ]
    else:
        first = max([*vocabulary.values(), *(one["id"] for one in state["added_tokens"])]) + 1
        vocabulary |= {form: first + i for i, form in enumerate(added)}
    if model["type"] == "BPE":
        model["ignore_merges"] = True  # takes a word that is in the vocabulary whole
    return Tokenizer.from_str(json.dumps(state))


def _encode(encoder: Encoder, rows: list[list[int]], show: bool | None) -> npt.NDArray[np.float32]:
    """Encode rows of token ids: float32 [n, D], as pooled."""
    pipeline = encoder.pipeline
    plan = pipeline.plan(normalize_embeddings=False)
    tokens = pipeline.tokenize(rows, plan).tokens
    vectors = np.empty((len(rows), encoder.dimension), np.float32)
    bar = progress_bar(len(rows), show, unit="token", desc="distill")
    try:
        for batch in pipeline.batches(tokens, plan, np.arange(len(rows))):
            vectors[batch], bad = pipeline.run(pipeline.pad(tokens, batch))
            vectors[batch[bad]] = 0
            bar.update(len(batch))
    finally:
        bar.close()
    return vectors


def _frequencies(
    tokenizer: Tokenizer, size: int, parts: dict[int, list[int]], words: dict[str, float]
) -> Floats:
    """Return how often each token occurs: counted in words, but at least as Zipf's law says.

    Lists of words are in lower case, so a word counts with a capital first letter, too: else a
    tokenizer that tells them apart would take the words that begin sentences for rare ones.
    """
    inverse = 1 / (np.arange(size) + 2)
    counted = np.zeros(size)
    forms = [*words, *(word[:1].upper() + word[1:] for word in words)]
    for encoding, often in zip(tokenizer.encode_batch(forms), [*words.values()] * 2, strict=True):
        for token in encoding.ids:
            np.add.at(counted, [token, *parts.get(token, ())], often)
    found: Floats = np.maximum(counted / max(counted.sum(), 1e-9), inverse / inverse.sum())
    return found


def _reduce(
    vectors: npt.NDArray[np.float32], often: Floats, half: float, dimension: int
) -> npt.NDArray[np.float32]:
    """Reduce vectors to their principal components, and weight them: float32 [n, `dimension`]."""
    weights = half / (half + often)
    center = np.average(vectors, axis=0, weights=often * weights)
    covariance = np.zeros((vectors.shape[1], vectors.shape[1]))
    parts = [slice(i, i + _CHUNK) for i in range(0, len(vectors), _CHUNK)]
    for part in parts:
        centered = vectors[part] - center
        covariance += (centered * (often * weights**2)[part, None]).T @ centered
    _, components = np.linalg.eigh(covariance)
    first = round(len(center) / _DIMENSIONS_PER_COMPONENT)
    kept = components[:, ::-1][:, first : first + dimension]
    kept = kept * np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(kept.shape[1])])
    return np.concatenate(
        [((vectors[p] - center) @ kept * weights[p, None]).astype(np.float32) for p in parts]
    )


def _manifest(
    folder: Path, encoder: Encoder, config: DistillConfig, table: npt.NDArray[np.float32]
) -> Manifest:
    source = encoder.manifest
    return Manifest(
        dimension=table.shape[1],
        max_length=MOST_TOKENS,
        pad_id=source.pad_id,
        pooling="mean-without-special",
        language=source.language,
        level=source.level,
        base_model=source.base_model,
        training={
            "distilled_from": digest_of(encoder.folder, verified=encoder.options.verify),
            "tokens": len(table),
        }
        | asdict(config)
        | {"words": config.words and Path(config.words).name},  # not whose folder it was in
        space=sha256(folder / TABLE)[:16],
        variants={"fp32": Variant(TABLE, "fp32", "static", unchecked="it is a table")},
        files=record_files(folder),
        **made_now(),
    )
