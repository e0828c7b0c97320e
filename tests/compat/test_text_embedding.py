"""The class beside the real one of fastembed: its arguments, and its results."""

import importlib
import inspect
import re
import shutil
import sys

import numpy as np
import pytest

from json_files import change
from mirror_rt import Manifest
from mirror_rt.bundle.known_models import known_models
from mirror_rt.compat import TextCrossEncoder, TextEmbedding
from mirror_rt.errors import BundleError, ConfigError
from paths import ROOT
from rounding import RUN_ERROR

# tests/run.sh installs it there: it declares a huggingface_hub too old for transformers.
sys.path.append(str(ROOT / "build" / "fastembed"))
TEXTS = ["a river in the town", "the doctor", "people of the world and their time"]
pytestmark = [pytest.mark.full, pytest.mark.needs("fastembed")]


@pytest.fixture(scope="module")
def fastembed():
    return importlib.import_module("fastembed")


@pytest.fixture(scope="module")
def both(bundle, fastembed):
    """A bundle in the real class, which takes its graph and tokenizer, and in ours."""
    from fastembed.common.model_description import ModelSource, PoolingType

    fastembed.TextEmbedding.add_custom_model(
        model="tiny",
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=ModelSource(hf="none/none"),
        dim=Manifest.read(bundle).dimension,
        model_file="onnx/model.onnx",
        output_name="sentence_embedding",
    )
    real = fastembed.TextEmbedding("tiny", specific_model_path=str(bundle), cuda=False)
    return real, TextEmbedding(str(bundle), cuda=False)


@pytest.mark.parametrize("name", ["embed", "query_embed", "passage_embed", "token_count"])
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name, fastembed):
    def arguments(kind):
        return [(a.name, a.kind, a.default)
                for a in inspect.signature(getattr(kind, name)).parameters.values()]  # fmt: skip

    assert arguments(TextEmbedding) == arguments(fastembed.TextEmbedding)


def test_the_model_is_made_with_the_arguments_of_the_real_class(fastembed):
    ours, theirs = (list(inspect.signature(kind.__init__).parameters)
                    for kind in (TextEmbedding, fastembed.TextEmbedding))  # fmt: skip
    assert ours == theirs


@pytest.mark.parametrize("method", ["embed", "query_embed", "passage_embed"])
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[0], ["", "a", " "]], ids=["several", "one", "no"])
def test_vectors_come_one_by_one_as_from_the_real_class(both, method, texts):
    theirs, ours = (getattr(model, method)(texts) for model in both)
    assert inspect.isgenerator(ours)
    assert inspect.isgenerator(theirs)
    np.testing.assert_allclose(np.stack(list(ours)), np.stack(list(theirs)), atol=RUN_ERROR)


def test_numbers_are_those_of_the_real_class(both):
    real, ours = both
    assert ours.embedding_size == real.embedding_size
    assert ours.token_count(TEXTS) == real.token_count(TEXTS)


@pytest.mark.parametrize("name", ["rerank", "rerank_pairs"])
def test_the_cross_encoder_takes_the_arguments_of_the_real_class(name):
    real = importlib.import_module("fastembed.rerank.cross_encoder").TextCrossEncoder
    for ours, theirs in (
        (TextCrossEncoder, real),
        (getattr(TextCrossEncoder, name), getattr(real, name)),
    ):
        names = [list(inspect.signature(one).parameters) for one in (ours, theirs)]
        assert names[0] == names[1]
    with pytest.raises(TypeError, match="model_name"):
        TextCrossEncoder()


def test_the_model_can_wait_for_its_first_call(bundle):
    with pytest.raises(BundleError):
        TextEmbedding("absent")
    waiting = TextEmbedding("absent", lazy_load=True)
    with pytest.raises(BundleError):
        next(iter(waiting.embed(TEXTS)))
    assert next(iter(TextEmbedding(str(bundle), lazy_load=True).embed("a town"))).ndim == 1


def test_an_endless_stream_is_read_as_it_is_needed(both):
    def endless():
        while True:
            yield from TEXTS

    stream = both[1].embed(endless(), window=4)
    assert next(stream).shape == (both[1].embedding_size,)
    stream.close()


def test_prompts_of_queries_and_passages_are_put_before_them(bundle_copy):

    change(bundle_copy / "mirror.json", prompts={"query": "query: ", "passage": "passage: "})
    model = TextEmbedding(str(bundle_copy))
    for method, prompt in (("query_embed", "query: "), ("passage_embed", "passage: ")):
        with_prompt, plain = getattr(model, method)(TEXTS), model.embed([prompt + t for t in TEXTS])
        np.testing.assert_array_equal(list(with_prompt), list(plain))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"cuda": "mps"}, "cuda must be"),
        ({"providers": ["CPUExecutionProvider"], "cuda": True}, "not both"),
        ({"nonsense": 1}, "takes no argument 'nonsense'"),
        ({"providers": ["CPUExecutionProvider", ("CUDAExecutionProvider", {"a": 1})]}, "the first"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(bundle, options, hint):
    with pytest.raises(ConfigError, match=hint):
        TextEmbedding(str(bundle), **options)


def test_a_name_is_looked_for_in_the_folder_that_is_named(bundle, tmp_path):
    from mirror_rt.compat import SentenceTransformer

    repository, commit = tmp_path / "models--someone--tiny", "0123456789" * 4
    shutil.copytree(bundle, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    named = {"local_files_only": True}
    model = TextEmbedding("someone/tiny", cache_dir=str(tmp_path), lazy_load=True, **named)
    assert model.embedding_size == Manifest.read(bundle).dimension
    other = SentenceTransformer(
        "someone/tiny", cache_folder=str(tmp_path), revision="main", **named
    )
    np.testing.assert_array_equal(other.encode(TEXTS), list(model.embed(TEXTS)))
    with pytest.raises(BundleError, match=r"not in the cache \(.*models"):
        TextEmbedding("all-MiniLM-L6-v2", cache_dir=str(tmp_path), **named)


def test_options_of_sessions_and_providers_are_taken(bundle):
    providers = [("CPUExecutionProvider", {})]
    model = TextEmbedding(
        str(bundle), enable_cpu_mem_arena=False, max_length=512, providers=providers
    )
    assert model.encoder.devices == ["cpu"]


def test_a_model_is_not_added_but_exported():
    with pytest.raises(ConfigError, match="mirror-rt export"):
        TextEmbedding.add_custom_model("tiny")


def test_models_that_load_by_name_are_described_as_by_the_real_class(fastembed):
    default = inspect.signature(TextEmbedding.__init__).parameters["model_name"].default
    (ours,) = [one for one in TextEmbedding.list_supported_models() if one["model"] == default]
    theirs = next(
        one
        for one in fastembed.TextEmbedding.list_supported_models()
        if one["model"] == ours["sources"]["hf"]
    )
    assert ours.keys() == theirs.keys()
    for key in ("dim", "license"):
        assert str(ours[key]).lower() == str(theirs[key])
    assert ours["model_file"] == "model.safetensors"


# fastembed runs a copy whose tokenizer cuts later than sentence_bert_config.json of the original.
_OTHER_LIMITS = {"sentence-transformers/paraphrase-multilingual-mpnet-base-v2": (128, 512)}


def test_facts_of_models_on_hubs_are_those_of_the_list_of_the_real_classes(fastembed):
    real = importlib.import_module("fastembed.rerank.cross_encoder").TextCrossEncoder
    listed = [*fastembed.TextEmbedding.list_supported_models(), *real.list_supported_models()]
    theirs = {one["model"].lower(): one for one in listed}
    pairs = [
        (ours, theirs[name])
        for ours in known_models()
        if (name := str(ours.hub_name).lower()) in theirs
    ]
    assert len(pairs) >= 15
    for ours, one in pairs:
        assert ours.license.lower() == one["license"], ours.name
        assert ours.dimension == one.get("dim", 0), ours.name
        if said := re.search(r"(\d+) input tokens", one["description"]):
            limits = _OTHER_LIMITS.get(ours.name, (ours.max_length,) * 2)
            assert (ours.max_length, int(said[1])) == limits, ours.name
        if "English" in one["description"]:
            assert ours.languages == "en", ours.name
        if "~" in one["description"]:
            number = re.search(r"~(\d+) languages", one["description"])
            assert ours.languages == f"about {number[1]}", ours.name
