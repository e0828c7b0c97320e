"""Refuse the folder of a model that is incomplete or damaged, too large, or no text encoder."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mirror_rt.bundle.checkpoint_files import shards_of
from mirror_rt.bundle.declarations import INDEX, MODULES, WEIGHTS
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.errors import BundleError, MirrorError, ModelError, Setting
from mirror_train.model.dense import refuse_compressed

logger = logging.getLogger("mirror_train")

_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model",
               "sentencepiece.bpe.model")  # fmt: skip
# The largest size accepted for each field of a configuration, far above every published encoder.
# Objects for each layer or label are created before any weight is read, so sizes are checked first.
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 1000),
    **dict.fromkeys(("num_hidden_groups", "inner_group_num", "num_experts"), 1000),
    **dict.fromkeys(("hidden_size", "embedding_size", "dim", "d_model"), 65_536),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "num_labels"), 1_000_000),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), 10_000_000),
}
# Files hold at least four bits for a weight; tied weights are stored, and counted, once.
_WEIGHTS_A_BYTE = 4


@contextlib.contextmanager
def as_model_error(folder: Path | None = None) -> Iterator[None]:
    """Raise a BundleError about a declaration as a ModelError: the folder is no bundle.

    With the `folder` that libraries load, all of their exceptions become one, too: transformers,
    huggingface_hub, safetensors, tokenizers and pickle have no common base class.
    """
    try:
        yield
    except BundleError as error:
        raise ModelError(str(error)) from error
    except MirrorError:
        raise
    except Exception as error:
        if folder is None:
            raise
        reason = " ".join(str(error).split()[:40]) or repr(error)
        raise ModelError(f"{folder} cannot be loaded: {reason}") from error


def check_folder(description: ModelDescription, trust_remote_code: bool) -> None:
    """Refuse a folder without configuration, weights or tokenizer, or with code of its own."""
    folder, modules = description.transformer, description.modules
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder: expected a Hugging Face model folder")
    config = folder / "config.json"
    bare = modules and not (description.folder / "config.json").is_file()
    if bare and modules[0].name != "Transformer":
        raise unsupported(description.folder, modules[0].name)
    if not config.exists():
        raise ModelError(f"{folder} is not a model folder: it has no config.json")
    for name, most in _MOST.items():  # building the configuration alone would take hours
        if (size := description.sizes.get(name, 0)) > most:
            raise ModelError(f"{config}: {name} is {size}, expected at most {most:,}")
    kind, code = description.config.get("model_type"), description.config.get("auto_map")
    if not kind:
        raise ModelError(f"{config} names no model_type")
    if code and kind not in CONFIG_MAPPING and not trust_remote_code:
        raise ModelError(
            f"{folder} ({kind}) comes with code of its own: read it, and pass ",
            Setting("trust_remote_code", True),
            " to run it",
        )
    _check_weight_files(description)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer: expected tokenizer.json beside the model")


def unsupported(folder: Path, name: str) -> ModelError:
    """Return the error for a module that is not known."""
    return ModelError(f"{folder}: the module {name} of {MODULES} is not supported")


def check_size(folder: Path, config: Any) -> None:
    """Refuse a model that is larger than its files of weights, before it takes memory."""
    with torch.device("meta"):
        described = AutoModel.from_config(config)
    needed = sum(weight.numel() for weight in described.parameters())
    held = sum(path.stat().st_size for path in weight_files(folder))
    if needed > _WEIGHTS_A_BYTE * held:
        raise ModelError(
            f"{folder} cannot be loaded: config.json describes {needed:,} weights, and the files "
            f"of weights have {held:,} bytes: they do not belong together, or are not whole"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights."""
    return sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin"))


def _check_weight_files(description: ModelDescription) -> None:
    folder, safe = description.transformer, description.weights
    pickled = [folder / name for name in _PICKLED_WEIGHTS]
    present = safe or next(filter(Path.is_file, pickled), None)
    if present is None:
        expected = ", ".join((WEIGHTS, INDEX, *_PICKLED_WEIGHTS))
        raise ModelError(f"{folder} has no weights: expected one of {expected}")
    if present.suffix == ".json":
        shards_of(present)  # no file outside the folder
    if safe is None:
        logger.warning(
            "%s holds pickled weights: only tensors are read from it, nothing in it is run; "
            "prefer model.safetensors",
            present,
        )
        for path in folder.glob("*.bin"):
            try:
                refuse_compressed(path)
            except ValueError as error:
                raise ModelError(f"{path} cannot be read: {error}") from error


def check_architecture(folder: Path, config: Any) -> None:
    """Refuse a model that is no text encoder."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{folder} is an encoder-decoder ({config.model_type}), not an encoder")
    if not (hasattr(config, "vocab_size") and hasattr(config, "hidden_size")):
        raise ModelError(f"{folder} ({config.model_type}) is not a text encoder")


def check_weights(folder: Path, report: dict[str, Any], *, optional: tuple[str, ...]) -> None:
    """Refuse weights that are missing, or have the wrong shape, by transformers' report.

    Weights that begin with one of `optional` are not needed.
    """
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(optional))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{folder}: the weights lack {missing[0]}{more}")
    if mismatched := sorted(str(entry) for entry in report.get("mismatched_keys", ())):
        raise ModelError(f"{folder}: a weight has the wrong shape: {mismatched[0]}")


def check_tokenizer(folder: Path, tokenizer: Any, config: Any) -> None:
    """Refuse a tokenizer that the run time cannot read, or that is not the model's."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"{folder}: {type(tokenizer).__name__} has no fast version (tokenizer.json), which "
            "the run time needs"
        )
    if tokenizer.pad_token_id is None:
        raise ModelError(f"{folder}: the tokenizer has no padding token")
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model only "
            f"{config.vocab_size}: they do not belong together"
        )
