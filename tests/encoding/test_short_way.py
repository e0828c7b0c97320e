"""The way from `encode` to the session is short, and goes once over every text."""

import logging
import sys

import numpy as np
import pytest

from mirror_rt import Encoder, InvalidTextError
from mirror_rt.tokens import tokenization, windows

# What both engines keep of a graph, and the function that runs it.
ENGINES = {"native": ("_encoder", "NativeRunner.run"), "cpu": ("_session", "GraphSession.run")}


def test_a_text_is_checked_once(encoder, monkeypatch):
    checked = []
    why_invalid = tokenization.why_invalid

    def count(text):
        checked.append(text)
        return why_invalid(text)

    monkeypatch.setattr(tokenization, "why_invalid", count)
    monkeypatch.setattr(windows, "why_invalid", count)
    texts = ["one", "two words", "three words here"]
    encoder.encode(texts)
    assert checked == texts
    checked.clear()
    assert len(list(encoder.encode_iter(texts, window=2))) == 3
    assert checked == texts


@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_text_takes_few_functions(bundle, engine):
    """Each costs microseconds after a run of the model, which empties the processor's caches."""
    called = []

    def note(frame, event, argument):
        if event == "call" and "elsewhere" not in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    encoder = Encoder.load(bundle, providers=engine, threads=1)
    encoder.encode("short text")
    sys.setprofile(note)
    try:
        encoder.encode("short text")
    finally:
        sys.setprofile(None)
    assert ENGINES[engine][1] in called
    assert len(called) <= 20, called


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": False},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": False},
        {"precision": "int8"},
        {"precision": "ubinary"},
        {"prompt": "query: "},
        {"prompt": "query: " * 60},
        {"errors": "nan"},
        {"show_progress_bar": True},
    ],
)
@pytest.mark.parametrize("text", ["a", "Short text!", "人生 é", "word " * 51, "word " * 300])
def test_the_short_way_gives_what_the_long_one_gives(encoder, text, options):
    np.testing.assert_array_equal(
        encoder.encode(text, **options), encoder.encode([text], **options)[0]
    )


@pytest.mark.parametrize("errors", ["raise", "nan"])
@pytest.mark.parametrize("text", ["", " \n", "ab\ud800c", "x" * 257])
def test_the_short_way_refuses_what_the_long_one_refuses(encoder, text, errors):
    def outcome(inputs):
        try:
            return np.atleast_2d(encoder.encode(inputs, errors=errors)).tolist()
        except InvalidTextError as error:
            return str(error)

    np.testing.assert_equal(outcome(text), outcome([text]))


def test_a_text_of_few_characters_and_many_tokens_is_reported_as_cut(bundle, caplog):
    encoder, text = Encoder.load(bundle, threads=1), "!" * 200  # a token for each
    assert len(encoder.tokenize(text)[0]) == encoder.max_length
    with caplog.at_level(logging.WARNING, "mirror_rt"):
        encoder.encode(text)
    assert "1 of 1 texts are longer than 128 tokens and were cut there" in caplog.text
    with pytest.raises(InvalidTextError, match="longer than 128 tokens"):
        encoder.encode(text, on_too_long="error")
