"""The class beside the real one of sentence-transformers: its arguments, and its results."""

import inspect
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as Real

from mirror_export import ExportConfig, export_bundle
from mirror_rt import Reranker, Scheduler
from mirror_rt.compat import CrossEncoder, TextCrossEncoder
from mirror_rt.errors import BundleError, ConfigError, InvalidTextError, OutputExistsError
from rounding import HALF_UNIT, LOGIT_ERROR, SCORE_ERROR
from tiny_models import make_model

QUERY = "a river in the town"
DOCUMENTS = ["the doctor", "people of the world and their time", "the river", "", "a town " * 90]
PAIRS = [(QUERY, document) for document in DOCUMENTS]


@pytest.fixture(
    scope="module",
    params=[1, pytest.param(3, marks=pytest.mark.full)],
    ids=["one label", "three labels"],
)
def both(request, words, tiny_cross_encoder, tiny_reranker, tmp_path_factory):
    """A cross-encoder in the real class, and its bundle in ours."""
    if request.param == 1:
        source, bundle = tiny_cross_encoder("bert"), tiny_reranker("bert")
    else:
        folder = tmp_path_factory.mktemp("labels")
        source, bundle = folder / "model", folder / "bundle"
        make_model("bert", source, words, labels=request.param)
        export_bundle(ExportConfig(str(source), bundle))
    return Real(str(source), device="cpu"), CrossEncoder(bundle, device="cpu")


@pytest.fixture(scope="module")
def ours(tiny_reranker):
    return CrossEncoder(tiny_reranker("bert"), device="cpu")


@pytest.mark.parametrize("name", ["__init__", "predict", "rank"])
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_real_class(name):
    def arguments(kind):
        found = inspect.signature(getattr(kind, name)).parameters.values()
        # The real class can be made of modules alone, so a model is optional there.
        return [(a.name, a.kind, a.default) for a in found if a.name != "model_name_or_path"]

    assert arguments(CrossEncoder) == arguments(Real)


def compare(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other)
    else:
        assert ours.shape == theirs.shape
        # Of logits, which one of the functions doubles.
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=2 * LOGIT_ERROR)


OPTIONS = [
    {"prompt": "about: ", "batch_size": 1},
    {"activation_fn": torch.nn.Identity()},
    {"activation_fn": torch.sigmoid, "apply_softmax": True},
    {"activation_fn": lambda logits: 2 * logits},
    {"apply_softmax": True, "convert_to_tensor": True},
    {"convert_to_numpy": False, "show_progress_bar": False},
    {"device": ["cpu", "cpu"], "chunk_size": 2, "num_workers": 0},
]
FORMS = [PAIRS[0], list(PAIRS[1]), [list(pair) for pair in PAIRS], np.array(PAIRS), []]


# Each option with several pairs, each form of pairs without options, and each shape of a result
# with one pair and with none.
@pytest.mark.parametrize(
    ("pairs", "options"),
    [*((PAIRS, options) for options in [{}, *OPTIONS]), *((pairs, {}) for pairs in FORMS),
     *((pairs, options) for pairs in (PAIRS[0], []) for options in OPTIONS[:-1])],
)  # fmt: skip
def test_predict_gives_what_the_real_class_gives(both, pairs, options):
    real, ours = both
    without = {k: v for k, v in options.items() if k not in ("device", "chunk_size")}
    theirs, found = real.predict(pairs, **without), ours.predict(pairs, **options)
    if len(pairs):
        compare(found, theirs)
    else:
        assert len(found) == len(theirs) == 0
        assert type(found) is type(theirs)


def test_rank_gives_what_the_real_class_gives(both):
    ours = both[1]
    for options in ({}, {"top_k": 2, "return_documents": True}, {"prompt": "about: "}):
        if ours.num_labels != 1:
            for model in both:
                with pytest.raises(ValueError, match=r"only works for models with num_labels=1\."):
                    model.rank(QUERY, DOCUMENTS, **options)
            continue
        theirs, found = (model.rank(QUERY, DOCUMENTS, **options) for model in both)
        assert [set(entry) for entry in found] == [set(entry) for entry in theirs]
        assert found == [pytest.approx(entry, abs=SCORE_ERROR) if "text" not in entry
                         else entry | {"score": pytest.approx(entry["score"], abs=SCORE_ERROR)}
                         for entry in theirs]  # fmt: skip


def test_what_is_asked_of_a_model_is_the_same(both):
    real, ours = both
    for name in ("num_labels", "max_seq_length", "prompts", "default_prompt_name"):
        assert getattr(ours, name) == getattr(real, name), name
    for name in ("num_labels", "id2label", "label2id"):
        assert getattr(ours.config, name) == getattr(real.config, name), name
    assert ours.device == real.device
    assert ours.get_max_seq_length() == ours.max_length == real.max_seq_length
    logits = torch.tensor([[-2.0, 0.5, 3.0]])
    with pytest.warns(DeprecationWarning, match="activation_fn"):
        before = ours.default_activation_function
    for function in (ours.activation_fn, before):
        torch.testing.assert_close(function(logits), real.activation_fn(logits), rtol=0,
                                   atol=8 * HALF_UNIT)  # fmt: skip
    for inputs in (PAIRS, PAIRS[0], [], np.array(PAIRS), np.array(PAIRS[0]), np.array([], str)):
        assert ours.is_singular_input(inputs) is real.is_singular_input(inputs)


def test_the_limit_can_be_lowered_and_not_raised(both):
    real, ours = both
    before = ours.max_length
    real.max_seq_length = ours.max_length = 9
    try:
        compare(ours.predict(PAIRS), real.predict(PAIRS))
    finally:
        real.max_seq_length = ours.max_length = before
    folder = ours.reranker.folder
    for given, most in ((9, 9), (8192, before)):  # which is all positions that it has
        assert CrossEncoder(folder, max_length=given).max_seq_length == most
    with pytest.raises(ConfigError, match=f"--max-length {before + 1}"):
        ours.max_length = before + 1


def test_a_call_may_ask_for_fewer_tokens(both):
    def asked(most, **more):
        return {"processing_kwargs": {"text": {"max_length": most, **more}}}

    real, ours = both
    pairs = [(QUERY, "a small boat on the river in the town")]
    compare(*(model.predict(pairs, **asked(8, truncation=True)) for model in (ours, real)))
    short, long = ours.predict(pairs, **asked(8)), ours.predict(pairs)
    assert np.abs(short - long).max() > 1e-5
    np.testing.assert_array_equal(ours.predict(pairs, **asked(8192)), long)
    for wrong in ({"text": {"padding": "max_length"}}, {"common": {}}):
        with pytest.raises(ConfigError, match=r"processing_kwargs.*max_length"):
            ours.predict(pairs, processing_kwargs=wrong)


@pytest.mark.parametrize("kind", ["weights", "bundle"])
def test_a_saved_model_has_the_settings_of_the_object(
    kind, tiny_cross_encoder, tiny_reranker, tmp_path
):
    folder = (tiny_cross_encoder if kind == "weights" else tiny_reranker)("bert")
    model = CrossEncoder(folder, prompts={"q": "about: "}, default_prompt_name="q",
                         activation_fn=torch.nn.Tanh())  # fmt: skip
    model.save_pretrained(str(tmp_path / "saved"), safe_serialization=True)
    again = CrossEncoder(str(tmp_path / "saved"))
    assert (again.prompts, again.default_prompt_name) == ({"q": "about: "}, "q")
    assert type(again.activation_fn) is torch.nn.Tanh
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    with pytest.raises(OutputExistsError):
        model.save(str(tmp_path / "saved"))
    model.activation_fn = np.tanh
    with pytest.raises(ConfigError, match="activation_fn"):
        model.save(str(tmp_path / "other"))
    model.max_length = 9
    with pytest.raises(ConfigError, match="max_seq_length"):
        model.save(str(tmp_path / "other"))


def test_prompts_go_before_the_first_text(ours):
    model = CrossEncoder(ours.reranker.folder, prompts={"q": "about: "}, default_prompt_name="q")
    expected = ours.predict([("about: " + query, document) for query, document in PAIRS])
    np.testing.assert_array_equal(model.predict(PAIRS), expected)
    np.testing.assert_array_equal(ours.predict(PAIRS, prompt="about: "), expected)
    with pytest.raises(ValueError, match="Prompt name 'no' not found"):
        model.predict(PAIRS, "no")


@pytest.mark.full
def test_what_a_folder_declares_goes_into_the_bundle(tiny_cross_encoder, tmp_path):
    source, long = tmp_path / "source", [*PAIRS, (QUERY, "the river in a town " * 60)]
    saved = Real(str(tiny_cross_encoder("bert")), device="cpu", prompts={"q": "about: ", "no": ""})
    saved.default_prompt_name = "q"
    saved.tokenizer.truncation_side = "left"
    saved.save_pretrained(str(source))
    export_bundle(ExportConfig(str(source), tmp_path / "bundle"))
    real = Real(str(source), device="cpu", processor_kwargs={"truncation_side": "left"})
    assert (real.default_prompt_name, real.tokenizer.truncation_side) == ("q", "left")
    ours, reranker = CrossEncoder(tmp_path / "bundle"), Reranker.load(tmp_path / "bundle")
    assert (ours.prompts, ours.default_prompt_name) == (real.prompts, "q")
    for options in ({}, {"prompt_name": "no"}, {"prompt": "a town: "}):
        theirs = real.predict(long, **options)
        np.testing.assert_allclose(ours.predict(long, **options), theirs, atol=SCORE_ERROR)
        ranked = [
            one["score"] for one in reranker.rank(QUERY, ["the doctor", long[-1][1]], **options)
        ]
        assert ranked == pytest.approx(sorted(theirs[[0, -1]], reverse=True), abs=SCORE_ERROR)
    with Scheduler(reranker) as scheduler:
        scored = reranker.scores(scheduler.encode(long[:3]))
    np.testing.assert_allclose(scored, real.predict(long[:3]), atol=SCORE_ERROR)
    assert np.abs(ours.predict(long, prompt="") - real.predict(long)).max() > 1e-3


def test_names_and_places_of_arguments_from_before_are_taken(ours, caplog):
    folder = ours.reranker.folder
    old = CrossEncoder(folder, 1, 12, torch.nn.Identity(), "cpu")
    assert old.max_length == 12
    named = CrossEncoder(
        model_name=folder,
        default_activation_function=torch.nn.Identity(),
        automodel_args={"threads": 1},
        tokenizer_args={"model_max_length": 12},
    )
    found = old.predict(sentences=PAIRS, activation_fct=torch.tanh, num_workers=2)
    # Either function is off by less than two units.
    np.testing.assert_allclose(found, np.tanh(named.predict(PAIRS)), atol=8 * HALF_UNIT)
    ours.rank(QUERY, DOCUMENTS, convert_to_tensor=True)
    said = " ".join(caplog.messages)
    assert "num_workers has no effect" in said
    assert "convert_to_tensor has no effect" in said


def test_the_cross_encoder_of_fastembed_yields_logits(ours):
    model = TextCrossEncoder(str(ours.reranker.folder), cuda=False, lazy_load=True)
    pairs = [(QUERY, text) for text in [*DOCUMENTS, ""]]
    expected = ours.predict(pairs, activation_fn=torch.nn.Identity())
    found = model.rerank(QUERY, (document for _, document in pairs), batch_size=2)
    assert isinstance(next(iter(model.rerank_pairs(pairs[:1]))), float)
    np.testing.assert_allclose(list(found), expected, atol=8 * SCORE_ERROR)
    np.testing.assert_allclose(list(model.rerank_pairs(pairs)), expected, atol=8 * SCORE_ERROR)
    names = [one["model"] for one in TextCrossEncoder.list_supported_models()]
    assert any("rerank" in name for name in names)


def test_dropout_and_types_of_torch_change_nothing(ours, caplog):
    old = CrossEncoder(str(ours.reranker.folder), classifier_dropout=0.5, trust_remote_code=True,
                       automodel_args={"torch_dtype": torch.float32})  # fmt: skip
    assert old.config.classifier_dropout == 0.5
    assert "`classifier_dropout` argument is deprecated, use `config_kwargs`" in caplog.text
    np.testing.assert_array_equal(old.predict(PAIRS), ours.predict(PAIRS))
    new = CrossEncoder(str(ours.reranker.folder), config_kwargs={"classifier_dropout": 0.5})
    assert new.model.config.classifier_dropout == 0.5
    with pytest.warns(DeprecationWarning, match="activation_fn"):
        assert type(new.default_activation_function) is torch.nn.Sigmoid


def test_functions_get_arrays_where_torch_is_not_imported(ours, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert type(ours.predict(PAIRS)) is np.ndarray
    seen = []
    ours.predict(PAIRS, activation_fn=lambda logits: seen.append(type(logits)) or np.tanh(logits))
    assert seen == [np.ndarray]


def test_further_options_of_predict_are_taken(ours):
    items = [*PAIRS, (QUERY, "\ud800"), "no pair", ("", "\ud800")]
    with pytest.raises(InvalidTextError, match=r"(?s)item 5: .*item 6: .*item 7: "):
        ours.predict(items)
    found = ours.predict(items, errors="nan")
    assert np.isnan(found).tolist() == [False] * 5 + [True] * 3
    np.testing.assert_allclose(found[:5], ours.predict(PAIRS), atol=SCORE_ERROR)
    with pytest.raises(InvalidTextError, match="item 4"):
        ours.predict(PAIRS, on_too_long="error")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda m: m.predict(PAIRS, device="cuda"), "choose the device when loading, CrossEncoder"),
        (lambda m: m.predict(PAIRS, chunks=3), "takes no argument 'chunks'"),
        (lambda m: m.predict(PAIRS, batch_size=0), "batch_size"),
        (lambda m: CrossEncoder(m.reranker.folder, num_labels=2), "num_labels"),
        (lambda m: CrossEncoder(m.reranker.folder, config_kwargs={"num_labels": 1}), "export"),
        (lambda m: CrossEncoder(m.reranker.folder, keep_in_fp32_modules=["x"]), "variant"),
        (lambda m: CrossEncoder(None), "folder or the name of a bundle"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(ours, call, hint):
    with pytest.raises(ConfigError, match=hint):
        call(ours)


def test_other_bundles_and_methods_that_are_elsewhere_say_where(ours, bundle):
    with pytest.raises(BundleError, match=r"mirror_rt\.Encoder\.load"):
        CrossEncoder(bundle)
    with pytest.raises(AttributeError, match="mirror-rt tune"):
        ours.fit([])
    assert ours.model.device == ours.device
    assert ours.model.config.num_labels == ours.num_labels
    assert ours.eval().to("cpu") is ours
    assert repr(ours).startswith("CrossEncoder(")
