"""The class beside the real one of fastembed: its arguments, and its results."""

import inspect
import itertools
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from mirror_rt.compat import TextCrossEncoder
from mirror_rt.errors import BundleError, ConfigError, InvalidTextError
from paths import ROOT

# tests/run.sh installs it there: it declares a huggingface_hub too old for transformers.
sys.path.append(str(ROOT / "build" / "fastembed"))
cross_encoder = pytest.importorskip(
    "fastembed.rerank.cross_encoder", reason="fastembed is not in build/fastembed"
)
QUERY = "a river in the town"
DOCUMENTS = ["the doctor", "people of the world and their time", "the river", " "]
PAIRS = [(QUERY, document) for document in DOCUMENTS]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def both(tiny_cross_encoder, tiny_reranker, tmp_path_factory):
    """A graph of PyTorch's logits in the real class, and a bundle of the same weights in ours."""
    from fastembed.common.model_description import ModelSource

    source = tiny_cross_encoder("bert")
    folder = tmp_path_factory.mktemp("fastembed")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    model = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager")
    model.config.return_dict = False
    axes = {name: {0: "rows", 1: "tokens"} for name in INPUTS}
    (folder / "onnx").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a way to export that is short, and old
        torch.onnx.export(
            model.eval(), tuple(torch.ones(2, 5, dtype=torch.int64) for _ in INPUTS),
            folder / "onnx" / "model.onnx", input_names=list(INPUTS), dynamic_axes=axes,
            dynamo=False,
        )  # fmt: skip
    cross_encoder.TextCrossEncoder.add_custom_model("tiny", ModelSource(hf="none/none"))
    real = cross_encoder.TextCrossEncoder("tiny", specific_model_path=str(folder), cuda=False)
    return real, TextCrossEncoder(str(tiny_reranker("bert")), cuda=False)


@pytest.mark.parametrize("name", ["rerank", "rerank_pairs", "token_count"])
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name):
    def arguments(kind):
        return [(a.name, a.kind, a.default)
                for a in inspect.signature(getattr(kind, name)).parameters.values()]  # fmt: skip

    assert arguments(TextCrossEncoder) == arguments(cross_encoder.TextCrossEncoder)


def test_the_model_is_made_with_the_arguments_of_the_real_class():
    ours, theirs = (list(inspect.signature(kind.__init__).parameters)
                    for kind in (TextCrossEncoder, cross_encoder.TextCrossEncoder))  # fmt: skip
    assert ours == theirs


def test_scores_come_one_by_one_as_from_the_real_class(both):
    theirs, ours = (model.rerank(QUERY, DOCUMENTS) for model in both)
    assert inspect.isgenerator(ours)
    found = list(ours)
    assert {*map(type, found)} == {float}
    np.testing.assert_allclose(found, list(theirs), atol=2e-5)
    theirs, ours = (list(model.rerank_pairs(PAIRS[::-1], batch_size=2)) for model in both)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    np.testing.assert_allclose(ours, found[::-1], atol=1e-6)
    assert both[0].token_count(PAIRS) == both[1].token_count(PAIRS)


def test_an_endless_stream_is_read_as_it_is_needed(both):
    scores = both[1].rerank(QUERY, itertools.cycle(DOCUMENTS))
    first = list(itertools.islice(scores, 9000))
    np.testing.assert_allclose(first[8192:8196], first[:4], atol=1e-6)


def test_the_model_can_wait_for_its_first_call_and_says_what_cannot_be_done(both):
    waiting = TextCrossEncoder("absent", lazy_load=True)
    with pytest.raises(BundleError):
        next(waiting.rerank(QUERY, DOCUMENTS))
    with pytest.raises(ConfigError, match="mirror-rt export"):
        TextCrossEncoder.add_custom_model("tiny")
    with pytest.raises(ConfigError, match="MIRROR_RT_CACHE"):
        TextCrossEncoder("absent", cache_dir="x")
    with pytest.raises(InvalidTextError, match="item 1: the document"):
        list(both[1].rerank(QUERY, ["a", None]))
    assert TextCrossEncoder.list_supported_models() == []
