"""Options are visible in `help`, and those of other libraries are answered with what to write."""

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest

from mirror_rt import ConfigError, Encoder, LanguagePack, Predictor, Scheduler, UnknownOptionError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions
from paths import ROOT


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Encoder.load, LoadOptions),
        (LanguagePack.load, LoadOptions),
        (Predictor.load, LoadOptions),
        *((getattr(Encoder, name), EncodeOptions) for name in (
            "encode", "encode_with_info", "encode_query", "encode_document", "encode_iter",
            "encode_tokens", "aencode", "aencode_query", "aencode_document")),
        (LanguagePack.encode, EncodeOptions),
        (LanguagePack.aencode, EncodeOptions),
        (Scheduler.encode, EncodeOptions),
    ],
)  # fmt: skip
def test_help_shows_every_option_with_its_default(function, options):
    shown = inspect.signature(function).parameters
    instance = options()
    for field in fields(options):
        assert shown[field.name].default == getattr(instance, field.name)
    assert "options" not in shown
    assert "keywords" not in shown


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("convert_to_tensor", r"torch\.from_numpy\(encoder\.encode\(texts\)\)"),
        ("output_value", r"encoder\.encode_tokens"),
        ("device", r"Encoder\.load\(path, providers='cuda', devices=\[0\]\)"),
        ("nonsense", "it takes batch_size, normalize_embeddings"),
    ],
)
@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_with_info"])
def test_an_option_of_another_library_is_answered_with_a_line(bundle, method, name, hint):
    with (
        Encoder.load(bundle) as encoder,
        pytest.raises(UnknownOptionError, match=hint) as caught,
    ):
        getattr(encoder, method)(["a text"], **{name: True})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    ("option", "hint"),
    [({"device": "cuda"}, "providers='cuda'"), ({"cache_folder": "x"}, "MIRROR_RT_CACHE"),
     ({"nonsense": 1}, "it takes variant")],
)  # fmt: skip
@pytest.mark.parametrize("cls", [Encoder, Predictor])
def test_so_is_an_option_of_loading(bundle, cls, option, hint):
    with pytest.raises(UnknownOptionError, match=hint):
        cls.load(bundle, **option)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("get_sentence_embedding_dimension", r"encoder\.dimension"),
     ("query_embed", r"encoder\.encode_query"), ("nonsense", "has no attribute 'nonsense'$")],
)  # fmt: skip
def test_so_is_an_attribute(bundle, name, hint):
    with Encoder.load(bundle) as encoder:
        with pytest.raises(AttributeError, match=hint):
            getattr(encoder, name)
        assert not hasattr(encoder, name)


CALLER = """\
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

from mirror_rt import Encoder
from mirror_rt.compat import SentenceTransformer


def call(encoder: Encoder, model: SentenceTransformer) -> None:
    assert_type(encoder.encode("a"), npt.NDArray[np.float32])
    assert_type(encoder.encode("a", precision="int8"), npt.NDArray[Any])
    assert_type(model.encode("a"), npt.NDArray[np.float32])
    assert_type(model.encode_query(["a"]), npt.NDArray[np.float32])
    assert_type(model.encode("a", convert_to_tensor=True), Any)
"""


@pytest.mark.full
def test_callers_see_what_they_get(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    line = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"]
    done = subprocess.run(
        [*line, tmp_path / "caller.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
