"""Any text of any length among any neighbours: no crash, no cross-talk, the vector it has alone.

MIRROR_RT_FUZZ sets the number of examples (300 unless set; 10,000 before a release).
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror_rt import InvalidTextError
from mirror_rt.tokens.validity import why_invalid
from rounding import of_norms

WORDS = [
    "river",
    "the",
    "town",
    "é",
    "人",
    "🙂",
    "\u0301",
    "\u200d",
    "\x00",
    " ",
    "\n",
    "[SEP]",
    "-",
]

# Arbitrary Unicode with lone surrogates; long texts of few words; what is no text at all.
short = st.text(st.characters(), max_size=40)
long = st.builds(
    lambda words, times: "".join(words) * times,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
    st.integers(1, 400),
)
no_text = st.sampled_from([None, b"bytes", 3, 2.5, float("nan"), True, ["a"], {"a": 1}, object()])
items = st.one_of(short, long, short, long, no_text)

fuzz = settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "300")), deadline=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip


@fuzz
@given(
    inputs=st.lists(items, min_size=1, max_size=10),
    batch_size=st.integers(1, 40),
    on_too_long=st.sampled_from(["truncate", "truncate-left", "error", "chunk"]),
    prompt=st.sampled_from(["", "the word "]),
    window=st.integers(1, 12),
)
def test_any_input_among_any_neighbours(encoder, inputs, batch_size, on_too_long, prompt, window):
    options = {"on_too_long": on_too_long, "prompt": prompt, "errors": "nan"}
    info = encoder.encode_with_info(inputs, batch_size=batch_size, **options)
    vectors = info.embeddings
    assert vectors.shape == (len(inputs), encoder.dimension)
    alone = [encoder.encode([item], **options)[0] for item in inputs]
    np.testing.assert_array_equal(vectors, alone)
    stream = encoder.encode_iter(inputs, window=window, **options)
    np.testing.assert_array_equal(list(stream), vectors)

    lost = np.isnan(vectors).any(axis=1)
    norms = np.linalg.norm(vectors[~lost].astype(float), axis=1)
    np.testing.assert_allclose(norms, 1, atol=of_norms(encoder.dimension, times=1))
    unusable = np.array([why_invalid(item) is not None for item in inputs])
    assert (lost == unusable).all() or on_too_long == "error"
    assert not (unusable & ~lost).any()
    assert ((info.chunks == 0) == lost).all()
    assert (info.token_counts[~lost] <= info.chunks[~lost] * encoder.max_length).all()
    assert on_too_long.startswith("truncate") or not info.truncated.any()

    options["errors"] = "raise"
    if lost.any():
        with pytest.raises(InvalidTextError) as caught:
            encoder.encode(inputs, **options)
        named = {i for i, _ in caught.value.items}
        assert named <= set(np.flatnonzero(lost))
    else:
        np.testing.assert_array_equal(encoder.encode(inputs, **options), vectors)
