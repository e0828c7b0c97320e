"""The way from `encode` to the session is short, and goes once over every text."""

import sys

import pytest

from mirror_rt import Encoder
from mirror_rt.tokens import tokenization, windows


@pytest.fixture
def encoder(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        yield encoder


class FrameCounter:
    """A session that notes the functions between it and the test."""

    def __init__(self, session):
        self._session = session
        self.frames = []

    def run(self, *arguments):
        frame = sys._getframe(1)
        self.frames = []
        while frame is not None and frame.f_code.co_name != "test_at_most_seven_frames":
            self.frames.append(frame.f_code.co_qualname)
            frame = frame.f_back
        return self._session.run(*arguments)


@pytest.mark.parametrize("inputs", ["short text", ["two", "texts"], ["word " * 9] * 300])
def test_at_most_seven_frames(encoder, inputs):
    graph = encoder.pipeline.model.runner
    graph._session = counter = FrameCounter(graph._session)
    encoder.encode(inputs)
    assert counter.frames[0] == "GraphSession.run"
    assert counter.frames[-1] == "BatchEncoder.encode"
    assert len(counter.frames) <= 7, counter.frames


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


def test_what_the_scheduler_needs_is_no_member_of_an_encoder(encoder):
    internal = {"prepare", "run_tokens", "finish", "job", "plan", "pad_to", "run_cost",
                "parallel_runs", "prepare_concurrent_runs"}  # fmt: skip
    assert not internal & set(dir(encoder))
