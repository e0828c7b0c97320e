"""The sparse classes beside the real one of sentence-transformers: arguments and results."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder as Real

import mirror_rt
from mirror_rt.compat import SparseEmbedding, SparseEncoder, SparseTextEmbedding
from mirror_rt.errors import BundleError, ConfigError, InvalidTextError, UnknownOptionError
from mirror_rt.sparse.vectors import SparseVectors
from rounding import GATE

TEXTS = ["a river in the town", "the doctor", "", "people of the world and their time"]


@pytest.fixture(scope="module")
def both(tiny_sparse):
    folder = tiny_sparse("bert")
    return Real(str(folder), device="cpu"), SparseEncoder(folder, device="cpu")


@pytest.fixture(scope="module")
def with_table(tiny_sparse):
    folder = tiny_sparse("bert", looks_up=True)
    return Real(str(folder), device="cpu"), SparseEncoder(folder, device="cpu")


def arguments(function):
    found = inspect.signature(function).parameters.values()
    # The real class can be made of modules alone, so a model is optional there.
    return [(a.name, a.kind, a.default) for a in found if a.name != "model_name_or_path"]


@pytest.mark.parametrize("name", ["__init__", "encode"])
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name):
    assert arguments(getattr(SparseEncoder, name)) == arguments(getattr(Real, name))


def compare(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other)
        return
    assert (ours.layout, ours.dtype, ours.shape) == (theirs.layout, theirs.dtype, theirs.shape)
    ours, theirs = (one.to_dense().numpy() for one in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, atol=GATE)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize(
    "texts", [TEXTS, TEXTS[0], np.array(TEXTS[:2])], ids=["several", "one", "array"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"convert_to_sparse_tensor": False},
        {"convert_to_tensor": False, "save_to_cpu": True},
        {"max_active_dims": 5, "batch_size": 1},
        {"prompt": "about: ", "show_progress_bar": False, "chunk_size": 3},
    ],
)
def test_encode_gives_what_the_real_class_gives(both, method, texts, options):
    theirs, ours = (getattr(model, method)(texts, **options) for model in both)
    compare(ours, theirs)


def test_queries_are_looked_up_where_there_is_a_table(with_table):
    real, ours = with_table
    texts = [text for text in TEXTS if text]
    for method in ("encode_query", "encode_document"):
        compare(getattr(ours, method)(texts), getattr(real, method)(texts))
    compare(ours.encode(texts, task="query"), ours.encode_query(texts))
    limit = {"processing_kwargs": {"text": {"max_length": 3}}}
    few = ours.encode_query(texts[-1], **limit)
    assert few._nnz() < ours.encode_query(texts[-1])._nnz()
    ours.max_seq_length = 3
    compare(ours.encode_query(texts[-1]), few)
    ours.max_seq_length = real.max_seq_length


@pytest.mark.parametrize("name", SparseEncoder.SUPPORTED_SIMILARITY_FN_NAMES)
def test_similarities_are_those_of_the_real_class(both, name):
    real, ours = both
    try:
        real.similarity_fn_name = ours.similarity_fn_name = name
        a, b = ours.encode(TEXTS), ours.encode(TEXTS[:2])
        for one in (a, a.to_dense(), list(a), a.to_dense().numpy()):
            torch.testing.assert_close(
                ours.similarity(one, b),
                real.similarity(a.to_dense(), b.to_dense()),
                atol=1e-4,
                rtol=1e-5,
            )
        expected = real.similarity_pairwise(b.to_dense(), b.to_dense())
        torch.testing.assert_close(ours.similarity_pairwise(b, b), expected, atol=1e-4, rtol=1e-5)
    finally:
        real.similarity_fn_name = ours.similarity_fn_name = None
    assert ours.similarity_fn_name == real.similarity_fn_name == "dot"


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # of torch, in the real class
def test_words_numbers_and_intersections_are_those_of_the_real_class(both):
    real, ours = both
    vectors = ours.encode(TEXTS)
    for one in (vectors, vectors[0], vectors.to_dense()):
        for top_k in (None, 3):
            theirs, mine = (model.decode(one, top_k=top_k) for model in both)
            if one is vectors[0] or one.ndim == 1:
                theirs, mine = [theirs], [mine]
            for left, right in zip(theirs, mine, strict=True):
                assert sorted(left) == sorted(right) or top_k
                assert [weight for _, weight in left] == [weight for _, weight in right]
        assert ours.sparsity(one) == pytest.approx(real.sparsity(one))
    for other in (vectors[1], vectors):
        compare(ours.intersection(vectors[0], other), real.intersection(vectors[0], other))
    assert ours.get_embedding_dimension() == real.get_embedding_dimension()
    for name in ("max_seq_length", "prompts", "default_prompt_name", "max_active_dims"):
        assert getattr(ours, name) == getattr(real, name), name


def test_settings_are_saved(both, tmp_path):
    ours = SparseEncoder(both[1].encoder.folder, prompts={"query": "q: "}, max_active_dims=4)
    ours.similarity_fn_name = "cosine"
    ours.save(tmp_path / "saved")
    for kind in (Real, SparseEncoder):
        again = kind(str(tmp_path / "saved"))
        assert (again.similarity_fn_name, again.max_active_dims) == ("cosine", 4)
        assert again.prompts == {"query": "q: ", "document": ""}
        assert again.encode("the doctor")._nnz() <= 4


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda m: m.decode(m.encode("a"), top_k=0), "top_k must be a positive integer"),
        (lambda m: m.decode([1, 2]), "Expected torch.Tensor"),
        (lambda m: m.decode(torch.zeros(2, 3, 4)), "1D or 2D"),
        (lambda m: m.intersection(torch.zeros(3), torch.zeros(4)), "one embedding of 4 words"),
        (lambda m: setattr(m, "similarity_fn_name", "maxsim"), "MultiVectorEncoder"),
        (lambda m: SparseEncoder(m.encoder.folder, max_active_dims=0), "max_active_dims"),
        (lambda m: SparseEncoder(m.encoder.folder, modules=[1]), "mirror-rt export"),
        (lambda m: m.encode("a", device="cuda"), "choose the device when loading"),
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


def test_without_torch_vectors_stay_as_they_are(tiny_sparse):
    program = f"""
import sys
from mirror_rt.compat import SparseEncoder
model = SparseEncoder({str(tiny_sparse("bert"))!r})
rows = model.encode(["a town", "the doctor"])
assert "torch" not in sys.modules
print(type(rows).__name__, rows.shape == (2, model.get_embedding_dimension()))
one = model.encode("a town")
assert model.decode(one, top_k=2) == model.decode(rows, top_k=2)[0]
print(type(one).__name__, model.similarity(rows, rows).shape, model.sparsity(rows)["active_dims"])
print(model.encode(["a"], convert_to_sparse_tensor=False).ndim)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, one, dense = done.stdout.splitlines()
    assert rows == "SparseVectors True"
    assert one.startswith("SparseVector (2, 2) ")
    assert dense == "2"


def test_fastembed_has_the_vectors_of_the_encoder(tiny_sparse):
    folder = str(tiny_sparse("bert", looks_up=True))
    model, encoder = SparseTextEmbedding(folder, cuda=False), mirror_rt.SparseEncoder.load(folder)
    texts = [text for text in TEXTS if text]
    for name, expected in (
        ("embed", encoder.encode(texts)),
        ("query_embed", encoder.encode_query(texts)),
        ("passage_embed", encoder.encode_document(texts)),
    ):
        found = getattr(model, name)(texts)
        assert inspect.isgenerator(found)
        found = list(found)
        assert all(type(one) is SparseEmbedding for one in found)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.indices, other.indices)
            np.testing.assert_array_equal(one.values, other.values)
    one = next(iter(model.embed(texts[0], window=1, max_active_dims=3)))
    assert one.as_dict() == SparseEmbedding.from_dict(one.as_dict()).as_dict()
    assert list(one.as_object()) == ["values", "indices"]
    assert len(next(iter(model.embed(""))).indices)  # a blank text is a text, as in the original
    assert model.token_count(texts) == sum(map(model.token_count, texts)) > len(texts)
    assert model.list_supported_models() == []


def test_fastembed_waits_for_the_first_call_and_names_unknown_options(tiny_sparse):
    with pytest.raises(TypeError, match="model_name"):
        SparseTextEmbedding()  # which names no model by default, as the real class
    waiting = SparseTextEmbedding("absent", lazy_load=True)
    with pytest.raises(BundleError):
        next(iter(waiting.embed("a")))
    with pytest.raises(UnknownOptionError, match="nonsense"):
        next(iter(SparseTextEmbedding(str(tiny_sparse("bert"))).embed("a", nonsense=1)))


def test_rows_of_every_form_are_the_same():
    from mirror_rt.compat.sparse_tensors import as_embeddings, as_rows

    dense = np.array([[0, 1, 0], [0, 0, 0], [2, 0, 3]], np.float32)
    rows, one = as_rows(dense)
    assert (isinstance(rows, SparseVectors), one) == (True, False)
    for stacked in (True, False):
        again, _ = as_rows(as_embeddings(rows, stacked=stacked))
        np.testing.assert_array_equal(again.toarray(), dense)
    assert as_rows(torch.tensor(dense)[0])[1]
