"""The class beside the real one of sentence-transformers: its arguments, and its results."""

import inspect
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi
from sentence_transformers import SentenceTransformer as Real
from sentence_transformers import SimilarityFunction as RealFunction
from sentence_transformers import util as real_util
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from mirror_export import ExportConfig, export_bundle
from mirror_rt import compat
from mirror_rt.compat import SentenceTransformer, SimilarityFunction, util
from mirror_rt.errors import ConfigError, InvalidTextError, MissingDependencyError
from rounding import NORM_ERROR, RUN_ERROR, of_sums

TEXTS = ["a river in the town", "the doctor", "people of the world and their time"]
PROMPTS = {"query": "query: ", "document": "passage: "}


@pytest.fixture(scope="module")
def both(tiny_bert, made_once):
    """A model in the real class, and its bundle in ours."""

    def export(folder):
        transformer = Transformer(str(tiny_bert))
        pooling = Pooling(transformer.get_embedding_dimension(), "mean")
        Real(modules=[transformer, pooling, Normalize()], prompts=PROMPTS, device="cpu").save(
            str(folder / "model")
        )
        export_bundle(ExportConfig(str(folder / "model"), folder / "bundle"))

    folder = made_once("compat", export)
    real = Real(str(folder / "model"), device="cpu")
    return real, SentenceTransformer(folder / "bundle", device="cpu")


@pytest.mark.parametrize(
    "name",
    ["__init__", "encode", "encode_multi_process", "similarity", "similarity_pairwise",
     "start_multi_process_pool", "stop_multi_process_pool", "get_sentence_embedding_dimension",
     "get_max_seq_length", "truncate_embeddings"],
)  # fmt: skip
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name):
    def arguments(kind):
        found = inspect.signature(getattr(kind, name)).parameters.values()
        # The real class can be made of modules alone, so a model is optional there.
        return [(a.name, a.kind, a.default) for a in found if a.name != "model_name_or_path"]

    assert arguments(SentenceTransformer) == arguments(Real)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prompt_name": "query"},
        {"prompt": "about: "},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"truncate_dim": 9999, "precision": None},
        {"truncate_dim": 8, "output_value": None},
        {"prompt": "about: ", "prompt_name": "document"},
        pytest.param({"task": "query", "device": ["cpu", "cpu"]}, marks=pytest.mark.full),
        {"convert_to_numpy": False},
        {"convert_to_tensor": True},
        {"output_value": "token_embeddings"},
        {"output_value": None},
        {"batch_size": 1, "show_progress_bar": False, "device": "cpu"},
    ],
)
@pytest.mark.parametrize("inputs", [TEXTS, TEXTS[0]], ids=["several", "one"])
def test_encode_gives_what_the_real_class_gives(both, inputs, options):
    theirs, ours = (model.encode(inputs, **options) for model in both)
    compare(ours, theirs)


def compare(ours, theirs):
    if isinstance(theirs, dict):
        assert set(ours) <= set(theirs)
        tokens = int(theirs["attention_mask"].sum())  # the real class leaves the padding of a batch
        for key, value in ours.items():
            of_tokens = key != "sentence_embedding"
            compare(value, theirs[key][:tokens] if of_tokens else theirs[key])
    elif isinstance(theirs, list):
        assert isinstance(ours, list)
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b)
    else:
        assert isinstance(ours, np.ndarray | torch.Tensor)
        assert tuple(ours.shape) == tuple(theirs.shape)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        scale = max(1.0, np.linalg.norm(theirs, axis=-1).max(initial=0))
        np.testing.assert_allclose(ours, theirs, atol=RUN_ERROR * scale)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantised_results_are_those_of_the_real_class(both, precision):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real class calls three texts too few
        theirs, ours = (model.encode(TEXTS, precision=precision) for model in both)
    assert ours.dtype == theirs.dtype
    # A value on the border of two codes may fall to either side.
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= (1 if "int8" in precision else 0)


def test_queries_and_documents_get_their_prompts(both):
    real, ours = both
    for method in ("encode_query", "encode_document"):
        compare(getattr(ours, method)(TEXTS), getattr(real, method)(TEXTS))
        compare(
            getattr(ours, method)(TEXTS, None, "x: "), getattr(real, method)(TEXTS, None, "x: ")
        )


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_the_real_class(both, name, rng):
    a, b = rng.normal(size=(3, 16)).astype("f4"), rng.normal(size=(3, 16)).astype("f4")
    before = both[0].similarity_fn_name
    for model in both:
        model.similarity_fn_name = name
    try:
        for method in ("similarity", "similarity_pairwise"):
            theirs, ours = (getattr(model, method)(a, b) for model in both)
            assert isinstance(ours, torch.Tensor)
            # Of 16 products or differences, each less than twice the product of the largest.
            bound = of_sums(16) * 16 * 2 * max(1, np.abs(a).max() * np.abs(b).max())
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=2 * bound)
            tensors = getattr(both[1], method)(torch.tensor(a), torch.tensor(b))
            assert isinstance(tensors, torch.Tensor)
    finally:
        both[0].similarity_fn_name = both[1].similarity_fn_name = before


def test_what_is_asked_of_a_model_is_the_same(both):
    real, ours = both
    for name in ("max_seq_length", "prompts", "default_prompt_name", "similarity_fn_name"):
        assert getattr(ours, name) == getattr(real, name), name
    assert ours.get_sentence_embedding_dimension() == real.get_embedding_dimension()
    assert ours.device == str(real.device)
    tokens, expected = ours.tokenize(TEXTS), real.tokenize(TEXTS)
    np.testing.assert_array_equal(tokens["input_ids"], expected["input_ids"].numpy())
    np.testing.assert_array_equal(tokens["attention_mask"], expected["attention_mask"].numpy())


def test_the_length_limit_can_be_lowered_and_not_raised(both):
    real, ours = both
    before = ours.max_seq_length
    real.max_seq_length = ours.max_seq_length = 4
    try:
        compare(ours.encode(TEXTS), real.encode(TEXTS))
    finally:
        real.max_seq_length = ours.max_seq_length = before
    with pytest.raises(ConfigError, match=f"--max-length {before + 1}"):
        ours.max_seq_length = before + 1


def test_a_pool_of_processes_is_this_process(both):
    ours = both[1]
    pool = ours.start_multi_process_pool(["cpu", "cpu"])
    vectors = ours.encode(TEXTS)
    np.testing.assert_array_equal(ours.encode(TEXTS, pool=pool), vectors)
    np.testing.assert_array_equal(ours.encode_multi_process(TEXTS, pool), vectors)
    ours.stop_multi_process_pool(pool)
    with pytest.raises(ConfigError, match=r"SentenceTransformer\(..., device='cuda:1'\)"):
        ours.start_multi_process_pool(["cuda:1"])


def test_prompts_of_the_caller_replace_those_of_the_bundle(both):
    folder = both[1].encoder.folder
    model = SentenceTransformer(folder, prompts={"q": "Q: "}, default_prompt_name="q")
    plain = both[1].encode([f"Q: {text}" for text in TEXTS])
    np.testing.assert_array_equal(model.encode(TEXTS), plain)
    with pytest.raises(ConfigError, match="Default prompt name 'absent' not found"):
        SentenceTransformer(folder, default_prompt_name="absent")


def test_truncation_holds_for_the_class_and_within_a_block(both):
    ours = both[1]
    with ours.truncate_embeddings(4):
        assert ours.encode(TEXTS).shape == (3, 4)
        assert ours.get_sentence_embedding_dimension() == 4
    assert ours.encode(TEXTS).shape[1] > 4


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda m: m.encode(TEXTS, device="cuda"), "choose the device when loading"),
        (lambda m: m.encode(TEXTS, output_value="words"), "'token_embeddings' or None"),
        (lambda m: m.encode(TEXTS, chunks=3), "takes no argument 'chunks'"),
        (lambda m: SentenceTransformer(m.encoder.folder, device="mps"), "'cpu', 'cuda'"),
        (lambda m: SentenceTransformer("owner/name", token="x"), "HF_TOKEN"),
        (lambda m: SentenceTransformer(m.encoder.folder, config_kwargs={"a": 1}), "export"),
        (lambda m: SentenceTransformer(None), "folder or the name of a bundle"),
        (lambda m: m.similarity(np.ones((2, 3)), np.ones((2, 4))), "3 and 4 dimensions"),
        (lambda m: m.similarity_pairwise(np.ones((2, 3)), np.ones((1, 3))), "2 and 1"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(both, call, hint):
    with pytest.raises(ConfigError, match=hint):
        call(both[1])


def test_arguments_that_change_nothing_are_taken(both, caplog):
    ours = SentenceTransformer(
        str(both[1].encoder.folder), trust_remote_code=True, cache_folder="x", token="x",
        revision="main", model_kwargs={"torch_dtype": torch.bfloat16, "use_safetensors": True},
        config_kwargs={"hidden_dropout_prob": 0.5},
    )  # fmt: skip
    assert "torch.bfloat16 has no effect" in caplog.text
    np.testing.assert_array_equal(ours.encode(TEXTS), both[1].encode(TEXTS))
    assert ours.model_card_data.base_model == ours.encoder.manifest.base_model.get("name")


def test_names_that_are_not_here_say_what_takes_their_place():
    for name, hint in (("StaticModel", "distill"), ("losses", "mirror-rt tune")):
        with pytest.raises(ImportError, match=f"no {name}: .*{hint}"):
            getattr(compat, name)
    assert not hasattr(compat, "nonsense")


def test_sparse_tensors_and_functions_by_name(both):
    a, b = (torch.tensor(both[1].encode(TEXTS[i:])) for i in (0, 1))
    found = util.cos_sim(a.to_sparse(), b)
    torch.testing.assert_close(found, util.cos_sim(a, b))
    for name in SimilarityFunction.possible_values():
        call = SimilarityFunction.to_similarity_fn(name)
        theirs = RealFunction.to_similarity_fn(name)
        torch.testing.assert_close(call(a, b), theirs(a, b), atol=1e-4, rtol=0)
        call = SimilarityFunction.to_similarity_pairwise_fn(name)
        theirs = RealFunction.to_similarity_pairwise_fn(name)
        torch.testing.assert_close(call(a, a + b[:1]), theirs(a, a + b[:1]), atol=1e-4, rtol=0)
    assert util.quantize_embeddings([], "int8") == []


def test_methods_that_are_elsewhere_say_where(both):
    with pytest.raises(AttributeError, match="mirror-rt tune"):
        both[1].fit([])
    assert both[1].to("cpu") is both[1]
    with pytest.raises(AttributeError, match="stays on cpu: choose device="):
        both[1].to("cuda")
    with pytest.raises(AttributeError, match="has no 'nonsense' here"):
        _ = both[1].nonsense


def test_a_call_may_ask_for_fewer_tokens(both):
    given = {"text": {"max_length": 5, "truncation": True}}
    for options in ({}, {"output_value": "token_embeddings"}, {"output_value": None}):
        compare(*(model.encode(TEXTS, **options, processing_kwargs=given) for model in both[::-1]))
    assert both[1].max_seq_length > 5


def test_what_is_saved_and_pushed_has_the_settings_of_the_object(both, tmp_path, monkeypatch):
    ours = SentenceTransformer(both[1].encoder.folder, similarity_fn_name="dot",
                               prompts={"query": "Q: "}, default_prompt_name="query")  # fmt: skip
    ours.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert (again.similarity_fn_name, again.default_prompt_name) == ("dot", "query")
    assert again.prompts == ours.prompts
    np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))

    sent = []

    def upload(_, **given):
        sent.append((given, SentenceTransformer(given["folder_path"]).similarity_fn_name))
        return SimpleNamespace(commit_url="commit", pr_url="discussion")

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr(HfApi, "create_branch", lambda _, **given: sent.append(given))
    monkeypatch.setattr(HfApi, "create_repo", lambda _, **given: SimpleNamespace(**given))
    assert ours.push_to_hub("owner/name", revision="new") == "commit"
    branch, (given, similarity) = sent
    assert (branch["branch"], given["revision"], similarity) == ("new", "new", "dot")
    assert ours.push_to_hub("owner/name", create_pr=True) == "discussion"
    with pytest.raises(AttributeError, match="call push_to_hub"):
        ours.save_to_hub("owner/name")


def test_further_options_of_encode_are_taken(both):
    with pytest.raises(InvalidTextError, match="lone surrogate"):
        both[1].encode(["a", "\ud800"])
    assert np.isnan(both[1].encode(["a", "\ud800"], errors="nan")[1]).all()


def test_a_tensor_without_torch_is_an_error_that_names_the_extra(both, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch"):
        both[1].encode(TEXTS, convert_to_tensor=True)


def test_blank_strings_have_the_vectors_of_the_real_class(both):
    texts = ["", "a river", " "]
    for options in ({}, {"prompt_name": "query"}, {"output_value": None}):
        compare(*(model.encode(texts, **options) for model in reversed(both)))


def test_names_of_arguments_from_before_are_taken(both):
    real, ours = both
    for method in ("encode", "encode_query", "encode_document"):
        compare(getattr(ours, method)(sentences=TEXTS), getattr(real, method)(sentences=TEXTS))
    folder = ours.encoder.folder
    assert SentenceTransformer(folder, tokenizer_kwargs={"model_max_length": 7}).max_seq_length == 7
    with pytest.raises(ConfigError, match="padding_side"):
        SentenceTransformer(folder, tokenizer_kwargs={"padding_side": "left"})


def test_the_prompts_query_and_document_exist_and_those_of_the_caller_join_them(bundle):
    assert SentenceTransformer(bundle).prompts == {"query": "", "document": ""}
    model = SentenceTransformer(bundle, prompts={"query": "Q: ", "STS": "S: "})
    assert model.prompts == {"query": "Q: ", "document": "", "STS": "S: "}


def test_a_prompt_goes_before_a_name_with_the_warning_of_the_real_class(both, caplog):
    for model in both:
        model.encode(TEXTS, prompt="about: ", prompt_name="query")
    theirs, ours = caplog.messages
    assert ours == theirs
    for model in both:
        with pytest.raises(ValueError, match=r"Prompt name 'no' not found.*'query', 'document'"):
            model.encode(TEXTS, prompt_name="no")


def test_the_function_of_similarity_is_set_by_its_member_or_name(both):
    ours = SentenceTransformer(both[1].encoder.folder, similarity_fn_name=SimilarityFunction.DOT)
    assert ours.similarity_fn_name == "dot"
    ours.similarity_fn_name = RealFunction.EUCLIDEAN
    assert ours.similarity_fn_name == "euclidean"
    with pytest.raises(ValueError, match="MultiVectorEncoder"):
        ours.similarity_fn_name = "maxsim"


def test_the_device_is_that_of_torch_and_the_tokenizer_that_of_transformers(both):
    real, ours = both
    assert ours.device == torch.device("cpu") == real.device
    assert ours.device.type == "cpu"
    assert ours.tokenizer(TEXTS)["input_ids"] == real.tokenizer(TEXTS)["input_ids"]
    assert ours.tokenizer.model_max_length == ours.max_seq_length


class Given:
    """A model whose texts are vectors already."""

    def encode(self, rows, **_):
        return torch.tensor(rows)


VECTORS = np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, lambda rows: list(torch.tensor(rows))])
@pytest.mark.parametrize(
    "call",
    [
        *(lambda u, a, b, name=f"{pairs}{name}": getattr(u, name)(a, b)
          for name in ("cos_sim", "dot_score", "euclidean_sim", "manhattan_sim")
          for pairs in ("", "pairwise_")),
        lambda u, a, b: u.semantic_search(a, b, top_k=3),
        lambda u, a, b: u.semantic_search(a[0], b, top_k=3),
        lambda u, a, b: u.semantic_search(a, b, 2, score_function=u.dot_score),
        lambda u, a, b: u.semantic_search(a, b, 2, score_function=u.euclidean_sim),
        lambda u, a, b: u.paraphrase_mining(Given(), np.stack(a), top_k=2),
        lambda u, a, b: u.paraphrase_mining(Given(), np.stack(a), max_pairs=5),
        lambda u, a, b: u.paraphrase_mining_embeddings(torch.tensor(np.stack(a)), top_k=2),
        lambda u, a, b: u.quantize_embeddings(a, "int8"),
        lambda u, a, b: u.quantize_embeddings(a, "ubinary"),
        lambda u, a, b: u.quantize_embeddings(a, "uint8", calibration_embeddings=np.stack(b)),
    ],
)  # fmt: skip
def test_functions_of_vectors_give_what_the_real_ones_give(call, kind):
    a, b = kind(VECTORS[:5]), kind(VECTORS[5:10])
    theirs, ours = call(real_util, a, b), call(util, a, b)
    assert isinstance(ours, torch.Tensor) == isinstance(theirs, torch.Tensor)
    approx(ours, theirs)


def test_a_comparison_is_a_tensor_where_torch_is(monkeypatch):
    """Ported programs call methods of tensors on it."""
    a, b = VECTORS[0], VECTORS[1]
    assert float(util.cos_sim(a, b)) == pytest.approx(
        float(real_util.cos_sim(a, b)), abs=NORM_ERROR
    )
    assert torch.topk(util.cos_sim(VECTORS, VECTORS), 1).indices.flatten().tolist() == [*range(12)]
    monkeypatch.delitem(sys.modules, "torch")
    assert isinstance(util.cos_sim(a, b), np.ndarray)


def approx(ours, theirs):
    if isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            approx(one, other)
    elif isinstance(theirs, dict):
        assert ours == pytest.approx(theirs, abs=RUN_ERROR)
    else:
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=RUN_ERROR)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9])
def test_communities_are_those_of_the_real_function(threshold, size):
    found = [u.community_detection(torch.tensor(VECTORS), threshold, size, batch_size=5)
             for u in (util, real_util)]  # fmt: skip
    assert [(group[0], set(group)) for group in found[0]] == [
        (group[0], set(group)) for group in found[1]
    ]


@pytest.mark.parametrize(
    ("queries", "corpus", "most"),
    [(VECTORS[:2], VECTORS[:0], 3), (VECTORS[:0], VECTORS, 3), (VECTORS[:2], VECTORS, 0),
     (VECTORS[0], VECTORS, 0)],
)  # fmt: skip
def test_a_search_that_finds_nothing_is_that_of_the_real_function(queries, corpus, most):
    queries, corpus = torch.tensor(queries), torch.tensor(corpus)
    theirs, ours = (u.semantic_search(queries, corpus, top_k=most) for u in (real_util, util))
    assert ours == theirs


def test_rows_without_a_score_are_not_found():
    corpus = np.array([[np.nan, 1], [1, 0], [0, 1]], np.float32)
    for compare in (util.cos_sim, util.dot_score):
        (found,) = util.semantic_search(corpus[1], corpus, top_k=3, score_function=compare)
        assert [one["corpus_id"] for one in found] == [1, 2]


@pytest.mark.parametrize("rows", [[], VECTORS[:0], VECTORS[:1], VECTORS[0]])
@pytest.mark.parametrize("size", [1, 2])
def test_communities_of_few_rows_are_those_of_the_real_function(rows, size):
    found = [u.community_detection(np.asarray(rows, np.float32), 0.5, size)
             for u in (util, real_util)]  # fmt: skip
    assert found[0] == found[1]


def test_vectors_are_cut_and_normalised_as_by_the_real_functions(both):
    rows = torch.tensor(VECTORS)
    assert torch.allclose(util.normalize_embeddings(rows), real_util.normalize_embeddings(rows))
    assert util.truncate_embeddings(rows, 3).shape == (12, 3)
    real, ours = both
    approx(util.paraphrase_mining(ours, TEXTS), real_util.paraphrase_mining(real, TEXTS))
