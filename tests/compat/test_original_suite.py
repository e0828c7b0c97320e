"""The tests of sentence-transformers itself, as they are, against the classes of those names."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.metadata import version

import pytest

from interop.environments import HERE, cache_folder
from mirror_export import ExportConfig, export_bundle
from tiny_models import make_model

FILES = ["sentence_transformer/test_model.py", "sentence_transformer/test_compute_embeddings.py",
         "util/test_retrieval.py"]  # fmt: skip
# They test other classes, models of other modules (averages of word vectors, LSTM ...), adapters of
# peft, or files and numbers of models that the model at hand is not.
OTHERS = [
    "test_clip", "test_conversion_ignores_source", "test_default_pooling_mode",
    "test_encode_normalize", "test_encode_single_sentences", "test_load_with_pytorch_bin",
    "test_load_with_revision", "test_load_with_safetensors", "test_encode_with_dataset_column",
    "test_safetensors", "test_router_transformers_model_property", "adapter", "peft",
]  # fmt: skip
_MODULES = "a bundle is a graph: it has no modules, hooks or settings of PyTorch"
REASONS = {
    "test_encode_routes_through_module_call": (1, _MODULES),
    "test_encode_truncate": (2, "results are arrays unless tensors are asked for"),
    "test_encode_tuple_sentences": (1, "a text is a string, not a pair of them"),
    "test_get_model_kwargs": (1, _MODULES),
    "test_load_local_without_normalize_directory": (1, _MODULES),
    "test_load_with_model_kwargs": (1, _MODULES),
    "test_model_card_save_update_model_id": (1, "the card is that of the folder"),
    "test_parse_model_config_ignores_multi_vector_similarity": (1, "it calls a private method"),
    "test_prompt_length_calculation": (4, "the tokenizer of a bundle cannot be changed"),
    "test_prompt_output_value_None": (1, "the dict of a text has what the graph gives, no more"),
    "test_push_to_hub": (1, "save_to_hub, its name before version 6, is refused"),
    "test_transformers_model_property": (1, _MODULES),
}

CROSS_FILES = ["cross_encoder/test_model.py", "cross_encoder/test_multi_process.py",
               "cross_encoder/evaluation/test_reranking.py"]  # fmt: skip
# They test models of other modules, chat templates, columns of the package datasets, or models of a
# hub that the ones at hand are not.
CROSS_OTHERS = [
    "chat_template", "from_dense_scores", "without_scores_output", "without_transformer",
    "with_dataset_column", "test_conversion_ignores_source", "test_load_with_revision",
    "test_rank[",
    "test_bge_reranker_max_length", "test_preprocess_raises_on_non_text_pair",
    "test_predict_raises_on_mixed_batch", "test_message_input_with_a_single",
]  # fmt: skip
CROSS_REASONS = {
    "test_load_activation_fn_from_kwargs": (1, "a model of one label gives no three"),
    "test_load_activation_fn_from_config_custom": (1, "an activation of other code is refused"),
    "test_predict_batch_size_1": (1, _MODULES),
    "test_predict_low_precision_logits_upcast_to_float32": (1, _MODULES),
    "test_predict_per_call_processing_kwargs": (1, "four tokens have no room for two texts"),
    "test_predict_routes_through_module_call": (1, _MODULES),
}


@pytest.fixture(scope="module")
def suite():
    """The tests that belong to the installed version."""
    folder = cache_folder() / f"sentence-transformers-{version('sentence-transformers')}"
    if not folder.is_dir():
        if os.environ.get("MIRROR_RT_INTEROP") != "1":
            pytest.skip(f"no tests in {folder}: MIRROR_RT_INTEROP=1 fetches them")
        tag = f"v{version('sentence-transformers')}"
        repository = "https://github.com/huggingface/sentence-transformers"
        subprocess.run(
            ["git", "clone", "--quiet", "--depth=1", "--branch", tag, repository, folder],
            check=True,
        )
    return folder / "tests"


@pytest.mark.full
@pytest.mark.interop
def test_what_fails_has_a_reason(suite, default_model, tmp_path):
    """Of the folder of weights, and of the bundle that is made of it."""
    export_bundle(ExportConfig(str(default_model), tmp_path / "bundle"))
    place(tmp_path / "sentence-transformers-testing/stsb-bert-tiny-safetensors", default_model)
    place(tmp_path / "sentence-transformers/all-MiniLM-L6-v2", tmp_path / "bundle")
    run(suite, tmp_path, FILES, OTHERS, REASONS, 470)


@pytest.mark.full
@pytest.mark.interop
def test_what_fails_of_cross_encoders_has_a_reason(suite, tiny_cross_encoder, words, tmp_path):
    """Of folders of weights, and of a bundle with three labels."""
    make_model("bert", tmp_path / "model", words, labels=3)
    several = tmp_path / "cross-encoder" / "nli-MiniLM2-L6-H768"
    several.parent.mkdir()
    export_bundle(ExportConfig(str(tmp_path / "model"), several))
    source, one = tiny_cross_encoder("bert"), "reranker-bert-tiny-gooaq-bce"
    place(tmp_path / "sentence-transformers-testing/stsb-bert-tiny-safetensors", source)
    place(tmp_path / "cross-encoder-testing" / one, source)
    tanh = "torch.nn.modules.activation.Tanh"
    for number, declared in (
        (3, {"sbert_ce_default_activation_function": tanh}),
        (4, {"sentence_transformers": {"activation_fn": tanh}}),
    ):
        copy = tmp_path / "cross-encoder-testing" / f"{one}-tanh-v{number}"
        shutil.copytree(source, copy)
        config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
        (copy / "config.json").write_text(json.dumps(config | declared), encoding="utf-8")
    run(suite, tmp_path, CROSS_FILES, CROSS_OTHERS, CROSS_REASONS, 70)


def place(name, folder):
    """Let a folder be found by the name of a model."""
    name.parent.mkdir(exist_ok=True)
    name.symlink_to(folder)


def run(suite, tmp_path, files, others, reasons, least):
    """Run files of the suite but for others; those that fail are in `reasons`, so often each."""
    for name in (*files, "utils.py"):
        copy = tmp_path / "tests" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (copy.parent / "__init__.py").touch()
        shutil.copy(suite / name, copy)
    shutil.copy(HERE / "suite_conftest.py", tmp_path / "tests" / "conftest.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-c", os.devnull, "--rootdir", tmp_path,
         "-p", "no:cacheprovider", "-k", f"not ({' or '.join(others)})", "tests"],
        cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    failed = Counter(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed == {name: count for name, (count, _) in reasons.items()}, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > least
