"""The tests of sentence-transformers itself, as they are, against the classes of those names."""

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
_SAVED = "a bundle is complete on disk: the class does not write models"
REASONS = {
    "test_encode_per_call_processing_kwargs": (1, "a call has no options of the tokenizer"),
    "test_encode_routes_through_module_call": (1, _MODULES),
    "test_encode_truncate": (2, "results are arrays unless tensors are asked for"),
    "test_encode_tuple_sentences": (1, "a text is a string, not a pair of them"),
    "test_get_model_kwargs": (1, _MODULES),
    "test_load_local_without_normalize_directory": (1, _SAVED),
    "test_load_with_model_kwargs": (1, _MODULES),
    "test_model_card_save_update_model_id": (1, _SAVED),
    "test_parse_model_config_ignores_multi_vector_similarity": (1, "it calls a private method"),
    "test_prompt_length_calculation": (4, "the tokenizer of a bundle cannot be changed"),
    "test_prompt_output_value_None": (1, "the dict of a text has what the graph gives, no more"),
    "test_push_to_hub": (1, _SAVED),
    "test_safe_serialization": (2, _SAVED),
    "test_save_load_prompts": (1, _SAVED),
    "test_similarity_fn_name_constructor_overrides_saved": (1, _SAVED),
    "test_similarity_score_save": (1, _SAVED),
    "test_transformers_model_property": (1, _MODULES),
}

CROSS_FILES = ["cross_encoder/test_model.py", "cross_encoder/test_multi_process.py",
               "cross_encoder/evaluation/test_reranking.py"]  # fmt: skip
# They test models of other modules, chat templates, columns of the package datasets, or models of a
# hub that the ones at hand are not.
CROSS_OTHERS = [
    "chat_template", "from_dense_scores", "without_scores_output", "without_transformer",
    "with_dataset_column", "test_conversion_ignores_source", "test_load_with_revision",
    "test_rank[", "test_num_labels_fresh_model", "test_load_activation_fn_from_kwargs", "tanh",
    "test_bge_reranker_max_length", "test_preprocess_raises_on_non_text_pair",
    "test_predict_raises_on_mixed_batch", "test_message_input_with_a_single",
]  # fmt: skip
CROSS_REASONS = {
    "test_load_activation_fn_from_config_custom": (1, _SAVED),
    "test_logger_warning": (1, "a limit above that of the model is refused"),
    "test_predict_batch_size_1": (1, _MODULES),
    "test_predict_low_precision_logits_upcast_to_float32": (1, _MODULES),
    "test_predict_per_call_processing_kwargs": (1, "a call has no options of the tokenizer"),
    "test_predict_routes_through_module_call": (1, _MODULES),
    "test_push_to_hub": (1, _SAVED),
    "test_safe_serialization": (2, _SAVED),
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
    export_bundle(ExportConfig(str(default_model), tmp_path / "bundle"))
    for name in ("sentence-transformers-testing/stsb-bert-tiny-safetensors",
                 "sentence-transformers/all-MiniLM-L6-v2"):  # fmt: skip
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(tmp_path / "bundle")
    run(suite, tmp_path, FILES, OTHERS, REASONS, 470)


@pytest.mark.full
@pytest.mark.interop
def test_what_fails_of_cross_encoders_has_a_reason(suite, tiny_reranker, words, tmp_path):
    make_model("bert", tmp_path / "model", words, labels=3)
    several = tmp_path / "cross-encoder" / "nli-MiniLM2-L6-H768"
    one = tmp_path / "cross-encoder-testing" / "reranker-bert-tiny-gooaq-bce"
    for folder in (several, one):
        folder.parent.mkdir()
    export_bundle(ExportConfig(str(tmp_path / "model"), several))
    one.symlink_to(tiny_reranker("bert"))
    run(suite, tmp_path, CROSS_FILES, CROSS_OTHERS, CROSS_REASONS, 50)


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
