"""The tests of sentence-transformers itself, as they are, against the classes of those names."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.metadata import distributions, version

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from interop.environments import HERE, cache_folder
from late_models import save_stanford
from mirror_export import ExportConfig, export_bundle
from paths import ROOT
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


SPARSE_FILES = ["sparse_encoder/test_model.py", "sparse_encoder/test_multi_process.py",
                "sparse_encoder/utils.py"]  # fmt: skip
# They test models of a hub that the ones at hand are not (SparseAutoEncoder, many words without
# weight), other classes, or columns of the package datasets.
SPARSE_OTHERS = [
    "csr", "test_max_active_dims_set_init", "test_detect_mlm", "test_sparsity",
    "test_conversion", "with_dataset_column",
]  # fmt: skip
SPARSE_REASONS = {
    "test_decode_invalid_input_type": (1, "the error is a ValueError, as all of options are"),
    "test_encode_numpy_2d_string_array": (1, "a text is a string, not a pair of them"),
    "test_encode_routes_through_module_call": (1, _MODULES),
    "test_get_model_kwargs": (1, _MODULES),
    "test_inference_free_splade": (1, _MODULES),
    "test_parse_model_config_ignores_multi_vector_similarity": (1, "it calls a private method"),
    "test_splade_pooling_chunk_size": (1, "no chunks are needed: logits are never held"),
}

LATE_FILES = [f"multi_vector_encoder/test_{name}.py"
              for name in ("model", "multi_process", "token_pooling", "evaluators")]  # fmt: skip
# They test modules, models of images, chat templates, folders of other kinds and private methods,
# or a pooling of the library by itself, which the installed version has changed.
LATE_OTHERS = [
    "test_bare_checkpoint", "task_kwarg", "test_task_not_forwarded", "test_loads_native_retriever",
    "test_convert", "test_conversion", "test_pylate_marked_conversion", "test_multimodal",
    "test_media_counts", "peft", "xtr", "test_stanford_metadata", "test_parse_model_config",
    "test_pooled_rows_are_cluster_means", "test_gradient_checkpointing", "message_backbone",
    "nano_beir",
]  # fmt: skip
_FOLDER = "how texts are tokenised is said by the folder, and never changed"
LATE_REASONS = {
    "test_default_colbert_attributes": (1, _MODULES),
    "test_distillation_evaluator_temperature_matches_training_loss": (1, "it trains"),
    "test_encode_document_skiplist_removes_punctuation": (1, _FOLDER),
    "test_encode_output_value_none_ignores_convert_flags": (1, _MODULES),
    "test_encode_output_value_none_returns_feature_dicts": (1, _MODULES),
    "test_encode_output_value_none_with_prompt": (1, _MODULES),
    "test_encode_pooling_applies_to_raw_output": (1, _MODULES),
    "test_encode_pooling_compounds_and_notes_when_module_present": (1, _MODULES),
    "test_encode_pooling_note_skipped_for_unpooled_tasks": (1, _MODULES),
    "test_encode_pooling_skips_queries_on_raw_output": (1, _MODULES),
    "test_encode_query_pads_to_expansion_length": (1, _FOLDER),
    "test_encode_routes_through_module_call": (1, _MODULES),
    "test_forward_backward_with_pooling_in_pipeline": (1, "it trains"),
    "test_hierarchical_pooling_module_in_pipeline": (1, _MODULES),
    "test_io_nameless_dense_config_defaults_to_token_level": (1, _MODULES),
    "test_loads_stanford_colbert_archetype": (1, _MODULES),
    "test_loads_with_default_modules": (1, _MODULES),
    "test_mask_keep_only_token_ids_none_is_noop": (1, _MODULES),
    "test_mask_keep_only_token_ids_restricts_document_mask": (1, _FOLDER),
    "test_mask_skiplist_all_unresolvable_yields_none": (1, _MODULES),
    "test_mask_skiplist_drops_unk_resolving_words": (1, _MODULES),
    "test_mask_skiplist_keeps_explicit_unk_token": (1, _MODULES),
    "test_max_length_override_loses_to_expansion_wins_elsewhere": (1, _FOLDER),
    "test_multi_process_output_value_none": (1, _MODULES),
    "test_native_save_keeps_plain_transformer_unchanged": (1, _MODULES),
    "test_pad_expansion_query_length_conflict_raises": (1, _FOLDER),
    "test_pinned_sentence_level_dense_survives_load": (1, "such a Dense is refused"),
    "test_prefix_added_token_repaired_to_single_piece": (1, _FOLDER),
    "test_prompt_length_ignores_query_expansion": (1, _FOLDER),
    "test_pylate_shape_save_round_trips_to_new_query_expansion": (1, _MODULES),
    "test_query_expansion_records_per_position_mask": (2, _FOLDER),
    "test_query_expansion_setter_validates_post_init": (1, _FOLDER),
    "test_query_expansion_without_mask_module_warns": (1, _MODULES),
    "test_save_and_load_round_trip": (1, _MODULES),
    "test_skiplist_words_set_at_init_and_resolved_on_demand": (1, _MODULES),
    "test_stanford_colbert_archetype_without_metadata_uses_defaults": (1, _MODULES),
    "test_user_constructed_model_with_prefix_prompts_round_trips": (1, _MODULES),
}

FASTEMBED_FILES = ["test_sparse_embeddings.py", "test_late_interaction_embeddings.py"]
# They compare numbers of models of a hub, or test BM25 and its kin, which are no models of weights.
FASTEMBED_OTHERS = ["test_batch_embedding", "test_single_embedding", "_stem", "bm25", "bm42",
                    "minicoil", "if_splade"]  # fmt: skip
FASTEMBED_REASONS = {
    "test_lazy_load": (2, "it asks a private attribute, whether a session is there"),
    "test_session_options": (2, "it asks a session of onnxruntime, which there may not be"),
    "test_token_count": (1, "a query is cut where the folder says, which fastembed does not do"),
}


@pytest.fixture(scope="module")
def suite():
    return fetched("huggingface/sentence-transformers", version("sentence-transformers"))


def fetched(repository, number):
    """Return the folder of the tests that belong to an installed version."""
    folder = cache_folder() / f"{repository.partition('/')[2]}-{number}"
    if not folder.is_dir():
        if os.environ.get("MIRROR_RT_INTEROP") != "1":
            pytest.skip(f"no tests in {folder}: MIRROR_RT_INTEROP=1 fetches them")
        subprocess.run(
            ["git", "clone", "--quiet", "--depth=1", "--branch", f"v{number}",
             f"https://github.com/{repository}", folder],
            check=True,
        )  # fmt: skip
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


@pytest.mark.full
@pytest.mark.interop
def test_what_fails_of_sparse_encoders_has_a_reason(suite, tiny_sparse, tmp_path):
    """Of folders of weights, without and with a table for queries."""
    for name, options in (("", {}), ("inference-free-", {"looks_up": True})):
        folder = tiny_sparse("bert", **options)
        place(tmp_path / f"sparse-encoder-testing/{name}splade-bert-tiny-nq", folder)
    run(suite, tmp_path, SPARSE_FILES, SPARSE_OTHERS, SPARSE_REASONS, 340)


@pytest.mark.full
@pytest.mark.interop
def test_what_fails_of_late_interaction_has_a_reason(suite, tiny_bert, tmp_path):
    """Of a folder of weights."""
    from sentence_transformers import MultiVectorEncoder

    folder = tmp_path / "sentence-transformers-testing/stsb-bert-tiny-safetensors"
    MultiVectorEncoder(str(tiny_bert), device="cpu").save_pretrained(str(folder))
    run(suite, tmp_path, LATE_FILES, LATE_OTHERS, LATE_REASONS, 90)


@pytest.mark.full
@pytest.mark.interop
@pytest.mark.needs("fastembed")
def test_what_fails_of_fastembed_has_a_reason(tiny_sparse, tiny_bert, tmp_path):
    """Of folders of weights, by the names that its tests give to models."""
    path = ROOT / "build" / "fastembed"
    (found,) = distributions(name="fastembed", path=[str(path)])
    for name in ("Splade_PP_en_v1", "splade_pp_en_v1"):
        place(tmp_path / "prithivida" / name, tiny_sparse("bert"))
    folder = save_stanford(tiny_bert, tmp_path / "late", query_maxlen=32, doc_maxlen=100)
    weights = load_file(folder / "model.safetensors")
    hidden = weights["linear.weight"].shape[1]
    weights["linear.weight"] = np.resize(weights["linear.weight"], (96, hidden))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name in ("answerai-ColBERT-small-v1", "answerai-colbert-small-v1"):
        place(tmp_path / "answerdotai" / name, folder)
    run(fetched("qdrant/fastembed", found.version), tmp_path, FASTEMBED_FILES, FASTEMBED_OTHERS,
        FASTEMBED_REASONS, 5, conftest="fastembed_conftest.py", path=path)  # fmt: skip


def place(name, folder):
    """Let a folder be found by the name of a model."""
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(folder)


def run(
    suite, tmp_path, files, others, reasons, least, *, conftest="suite_conftest.py", path=""
):  # fmt: skip
    """Run files of the suite but for others; those that fail are in `reasons`, so often each."""
    for name in (*files, "utils.py"):
        copy = tmp_path / "tests" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (copy.parent / "__init__.py").touch()
        shutil.copy(suite / name, copy)
    shutil.copy(HERE / conftest, tmp_path / "tests" / "conftest.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-c", os.devnull, "--rootdir", tmp_path,
         "-p", "no:cacheprovider", "-k", f"not ({' or '.join(others)})", "tests"],
        cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    failed = Counter(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed == {name: count for name, (count, _) in reasons.items()}, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > least
