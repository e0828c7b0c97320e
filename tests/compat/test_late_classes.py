"""The late-interaction classes beside the real one of sentence-transformers."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder as Real
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

import mirror_rt
from late_models import save_library, save_pylate, save_stanford
from mirror_rt.compat import LateInteractionTextEmbedding, MultiVectorEncoder
from mirror_rt.errors import BundleError, ConfigError, InvalidTextError, UnknownOptionError
from rounding import GATE

QUERIES = ["who runs?", "the old town", "a " * 40]
DOCUMENTS = ["The river runs slowly, through the old town.", "Children were playing!", "word", ""]


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    expansion = {"strategy": "fixed", "attend": False, "length": 18}
    return save_library(tiny_bert, tmp_path_factory.mktemp("late") / "model", expansion=expansion)


@pytest.fixture(scope="module")
def both(folder):
    return Real(str(folder), device="cpu"), MultiVectorEncoder(folder, device="cpu")


@pytest.mark.parametrize("name", ["__init__", "encode"])
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name):
    def arguments(kind):
        found = inspect.signature(getattr(kind, name)).parameters.values()
        return [(a.name, a.kind, a.default) for a in found if a.name != "model_name_or_path"]

    assert arguments(MultiVectorEncoder) == arguments(Real)


def compare(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other)
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=GATE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"convert_to_numpy": True, "batch_size": 1},
        {"normalize_embeddings": True, "show_progress_bar": False},
        {"token_pooling": HierarchicalTokenPooling(pool_factor=2)},
        {"prompt": "about: ", "chunk_size": 2},
    ],
)
def test_encode_gives_what_the_real_class_gives(both, options):
    for method, texts in (("encode_query", QUERIES), ("encode_document", DOCUMENTS)):
        for some in (texts, texts[0], []):
            theirs, ours = (getattr(model, method)(some, **options) for model in both)
            compare(ours, theirs)
    theirs, ours = (model.encode(DOCUMENTS, **options) for model in both)
    compare(ours, theirs)


def test_folders_of_other_libraries(tiny_bert, tmp_path):
    for number, save in enumerate((save_pylate, save_stanford)):
        folder = save(tiny_bert, tmp_path / str(number))
        real, ours = Real(str(folder), device="cpu"), MultiVectorEncoder(folder)
        compare(ours.encode_query(QUERIES), real.encode_query(QUERIES))
        compare(ours.encode_document(DOCUMENTS), real.encode_document(DOCUMENTS))
        with pytest.raises(ConfigError, match="call encode_query or encode_document"):
            ours.encode(QUERIES)


@pytest.mark.parametrize("name", MultiVectorEncoder.SUPPORTED_SIMILARITY_FN_NAMES)
def test_similarities_are_those_of_the_real_class(both, name):
    real, ours = both
    queries, documents = ours.encode_query(QUERIES), ours.encode_document(DOCUMENTS)
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    try:
        real.similarity_fn_name = ours.similarity_fn_name = name
        for a, b in (
            (queries, documents), (queries[0], documents), (queries, padded),
            ([one.numpy() for one in queries], [one.numpy() for one in documents]),
        ):  # fmt: skip
            for options in ({}, {"length_normalize": True}, {"chunk_elements": 100}):
                found, expected = (model.similarity(a, b, **options) for model in (ours, real))
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        found, expected = (one.similarity_pairwise(queries, documents[:3]) for one in (ours, real))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    finally:
        real.similarity_fn_name = ours.similarity_fn_name = None
    assert ours.similarity_fn_name == real.similarity_fn_name == "maxsim"


def test_what_is_asked_of_a_model_is_the_same_and_saved(both, tmp_path):
    real, ours = both
    assert ours.get_embedding_dimension() == real.get_embedding_dimension()
    assert ours.device == real.device
    assert ours.prompts == real.prompts
    ours = MultiVectorEncoder(ours.encoder.folder, prompts={"query": "find: "})
    ours.save_pretrained(tmp_path / "saved")
    again = MultiVectorEncoder(tmp_path / "saved")
    assert again.prompts == ours.prompts == Real(str(tmp_path / "saved")).prompts
    compare(again.encode_query(QUERIES), ours.encode_query(QUERIES))


def similar(model):
    model = MultiVectorEncoder(model.encoder.folder, similarity_fn_name="meanmaxsim")
    model.save("nowhere")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda m: m.encode("a", convert_to_tensor=True), "has no `convert_to_tensor`"),
        (
            lambda m: m.encode("a", processing_kwargs={"text": {}}),
            "are those of the model's folder",
        ),
        (lambda m: m.encode("a", output_value=None), 'output_value must be "token_embeddings"'),
        (lambda m: m.encode("a", task="passage"), "call encode_query or encode_document"),
        (lambda m: setattr(m, "similarity_fn_name", "cosine"), "only supports"),
        (lambda m: setattr(m, "max_seq_length", 5), "are those of the model's folder"),
        (similar, "set it after loading"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(both, call, hint):
    with pytest.raises(ConfigError, match=hint):
        call(both[1])


def test_what_is_no_text_or_no_option_is_refused(both):
    with pytest.raises(InvalidTextError, match="item 1"):
        both[1].encode(["a", None])
    with pytest.raises(UnknownOptionError, match="normalize"):
        both[1].encode("a", normalize=True)


def test_without_torch_vectors_are_arrays(folder):
    program = f"""
import sys
from mirror_rt.compat import MultiVectorEncoder
model = MultiVectorEncoder({str(folder)!r})
found = model.encode_query(["a town", "word"])
assert "torch" not in sys.modules
print(type(found[0]).__name__, model.similarity(found, found).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ndarray (2, 2)\n"


def test_fastembed_has_the_vectors_of_the_encoder(tiny_bert, tmp_path):
    folder = str(save_stanford(tiny_bert, tmp_path / "model"))
    encoder = mirror_rt.MultiVectorEncoder.load(folder)
    model = LateInteractionTextEmbedding(folder, cuda=False)
    texts = DOCUMENTS[:3]
    for name, expected in (
        ("embed", encoder.encode_document(texts)),
        ("passage_embed", encoder.encode_document(texts)),
        ("query_embed", encoder.encode_query(texts)),
    ):
        found = getattr(model, name)(texts)
        assert inspect.isgenerator(found)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(next(iter(model.embed("", window=1)))) == 3  # [CLS], the prefix and [SEP]
    dimension = LateInteractionTextEmbedding.get_embedding_size(folder)
    assert model.embedding_size == dimension == encoder.dimension
    assert model.list_supported_models() == []


def test_fastembed_counts_tokens_with_or_without_prefixes_and_fillers(tiny_bert, tmp_path):
    model = LateInteractionTextEmbedding(str(save_stanford(tiny_bert, tmp_path / "model")))
    texts = ["word", "word word"]
    assert model.token_count(texts) == model.token_count(texts, is_doc=False) == 3 + 4
    assert model.token_count(texts, include_extension=True) == 4 + 5
    assert model.token_count(texts, is_doc=False, include_extension=True) == 16 + 16
    assert model.token_count("word " * 40) == 23  # of 24, one is that of the prefix


def test_fastembed_waits_for_the_first_call_and_names_unknown_options(folder):
    with pytest.raises(TypeError, match="model_name"):
        LateInteractionTextEmbedding()  # which names no model by default, as the real class
    waiting = LateInteractionTextEmbedding("absent", lazy_load=True)
    with pytest.raises(BundleError):
        next(iter(waiting.embed("a")))
    with pytest.raises(UnknownOptionError, match="nonsense"):
        next(iter(LateInteractionTextEmbedding(str(folder)).embed("a", nonsense=1)))
