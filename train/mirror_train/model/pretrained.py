"""Load a Hugging Face encoder and its tokenizer, and refuse one that is incomplete or damaged."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from mirror_rt.errors import ConfigError, MirrorError, ModelError, Setting
from mirror_rt.io.atomic import sha256
from mirror_rt.schema import InnerPath, build
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_train.model.declared_modules import declared_text_options, transformer_folder
from mirror_train.model.dense import check_finite, read_object
from mirror_train.model.dropout import set_dropout
from mirror_train.model.families import family_of
from mirror_train.model.model_folder import DEFAULT_MODEL, SAFE_WEIGHTS, resolve_model

logger = logging.getLogger("mirror_train")

_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHT_FILES = (*SAFE_WEIGHTS, *_PICKLED_WEIGHTS)
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


@dataclass(frozen=True, slots=True)
class Pretrained:
    """An encoder and its tokenizer.

    Attributes:
        name: the path or hub name that the user gave.
        revision: commit on the hub; None for a local folder.
        folder: the local folder, or the folder of the files downloaded from the hub.
        model_folder: the transformer's own folder; a subfolder of `folder` in old layouts, else
            the same.
        model: the transformers model, without its pooler head, in evaluation mode.
        hf_tokenizer: the transformers tokenizer, to be saved beside the model.
        max_length: maximum number of tokens of a text that the model has positions for.
    """

    name: str
    revision: str | None
    folder: Path
    model_folder: Path
    model: PreTrainedModel
    hf_tokenizer: Any
    max_length: int
    pooler: torch.nn.Linear | None = None

    @property
    def public_name(self) -> str:
        """The hub name or the last part of a path: a manifest must not reveal a local path."""
        return Path(self.name).name if Path(self.name).exists() else self.name

    @property
    def dimension(self) -> int:
        """The length D of a hidden vector."""
        return int(self.model.config.hidden_size)

    @property
    def pad_id(self) -> int:
        """The token id to pad with."""
        return int(self.hf_tokenizer.pad_token_id)

    @property
    def mask_token(self) -> str | None:
        """The tokenizer's mask token; None where it has none."""
        token: str | None = self.hf_tokenizer.mask_token
        return token

    def weights_sha256(self) -> list[str]:
        """Return the SHA-256 hashes of the files that hold the weights."""
        return [sha256(path) for path in _weight_files(self.model_folder)]

    def check_special_tokens(self, poolings: Iterable[str]) -> None:
        """Check that the tokenizer puts one special token before a text and one after it."""
        if "mean-without-special" not in poolings:
            return
        mask = self.hf_tokenizer.backend_tokenizer.encode("a").special_tokens_mask
        if len(mask) < 3 or [i for i, special in enumerate(mask) if special] != [0, len(mask) - 1]:
            raise ConfigError(
                "pooling mean-without-special leaves out the first and the last token, but the "
                f"tokenizer of {self.name} does not put one special token at each end of a "
                "text: pass --pooling mean"
            )

    def check_length(self, max_length: int) -> None:
        """Raise ConfigError for a `max_length` of more tokens than the model has positions for."""
        if max_length > self.max_length:
            raise ConfigError(
                Setting("max_length"),
                f" {max_length} is more than the {self.max_length} positions of {self.name}",
            )

    def text_tokenizer(self, max_length: int, *, copy: bool = True) -> TextTokenizer:
        """Return a tokenizer that works as a bundle's does and cuts texts at `max_length` tokens.

        Without a copy, `hf_tokenizer` must not be saved afterwards, because it then has the limit.
        """
        backend: Tokenizer = self.hf_tokenizer.backend_tokenizer
        return TextTokenizer(backend, max_length=max_length, pad_id=self.pad_id, copy=copy)


def load_pretrained(
    name: str | Path = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    dropout: float | None = None,
) -> Pretrained:
    """Load an encoder in float32, from a folder, the hub, or the embedded default.

    A `dropout` is set as the rate of every dropout of the model; None leaves its own.
    """
    root, commit = resolve_model(str(name), revision=revision, offline=offline)
    folder = transformer_folder(root)
    _check_folder(folder, trust_remote_code)
    with quiet_transformers(), _as_model_error(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        _check_architecture(folder, config)
        if not trust_remote_code:
            _check_size(folder, config)
        if dropout is not None:
            set_dropout(config, dropout)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        model, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
        )
    _check_weights(folder, report)
    check_finite(model, folder)
    _check_tokenizer(folder, tokenizer, config)
    pooler = None
    if family_of(model).pooler:
        # A head for next-sentence prediction, which embeddings do not use.
        if not any(key.startswith("pooler.") for key in report["missing_keys"]):
            pooler = getattr(model.pooler, "dense", None)
        model.pooler = None
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if declared_text_options(folder).lowercase:
        _add_lowercase(tokenizer.backend_tokenizer)
    return Pretrained(
        str(name),
        commit,
        root,
        folder,
        model.eval(),
        tokenizer,
        _positions(model, tokenizer),
        pooler,
    )


def _check_folder(folder: Path, trust_remote_code: bool) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder: expected a Hugging Face model folder")
    config = folder / "config.json"
    if not config.exists():
        raise ModelError(f"{folder} is not a model folder: it has no config.json")
    values = read_object(config)
    _check_sizes(config, values)
    kind, code = values.get("model_type"), values.get("auto_map")
    if not kind:
        raise ModelError(f"{config} names no model_type")
    if code and kind not in CONFIG_MAPPING and not trust_remote_code:
        raise ModelError(
            f"{folder} ({kind}) comes with code of its own: read it, and pass ",
            Setting("trust_remote_code", True),
            " to run it",
        )
    _check_weight_files(folder)
    names = (
        "tokenizer.json",
        "vocab.txt",
        "vocab.json",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
    )
    if not any((folder / name).is_file() for name in names):
        raise ModelError(f"{folder} has no tokenizer: expected tokenizer.json beside the model")


def _check_sizes(path: Path, values: dict[str, Any]) -> None:
    """Refuse sizes with which building the configuration alone would take hours."""
    for name, value in values.items():
        if isinstance(value, dict):
            _check_sizes(path, value)
        elif isinstance(value, int) and value > _MOST.get(name, value):
            raise ModelError(f"{path}: {name} is {value}, expected at most {_MOST[name]:,}")


def _check_size(folder: Path, config: Any) -> None:
    """Refuse a model that is larger than its files of weights, before it takes memory."""
    with torch.device("meta"):
        described = AutoModel.from_config(config)
    needed = sum(weight.numel() for weight in described.parameters())
    held = sum(path.stat().st_size for path in _weight_files(folder))
    if needed > _WEIGHTS_A_BYTE * held:
        raise ModelError(
            f"{folder} cannot be loaded: config.json describes {needed:,} weights, and the files "
            f"of weights have {held:,} bytes: they do not belong together, or are not whole"
        )


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin"))


def _check_weight_files(folder: Path) -> None:
    present = [name for name in _WEIGHT_FILES if (folder / name).is_file()]
    if not present:
        raise ModelError(f"{folder} has no weights: expected one of {', '.join(_WEIGHT_FILES)}")
    if present[0].endswith(".json"):
        _check_shards(folder / present[0])
    if present[0] in _PICKLED_WEIGHTS:
        logger.warning(
            "%s holds pickled weights: only tensors are read from it, nothing in it is run; "
            "prefer model.safetensors",
            folder / present[0],
        )


def _check_shards(path: Path) -> None:
    """Refuse an index that names a file outside its folder."""
    try:
        build(dict[str, InnerPath], read_object(path).get("weight_map"), "weight_map")
    except ValueError as error:
        raise ModelError(f"{path} is damaged: {error}") from error


def _check_architecture(folder: Path, config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{folder} is an encoder-decoder ({config.model_type}), not an encoder")
    if not (hasattr(config, "vocab_size") and hasattr(config, "hidden_size")):
        raise ModelError(f"{folder} ({config.model_type}) is not a text encoder")


def _check_weights(folder: Path, report: dict[str, Any]) -> None:
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{folder}: the weights lack {missing[0]}{more}")
    if mismatched := sorted(str(entry) for entry in report.get("mismatched_keys", ())):
        raise ModelError(f"{folder}: a weight has the wrong shape: {mismatched[0]}")


def _check_tokenizer(folder: Path, tokenizer: Any, config: Any) -> None:
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


def _add_lowercase(tokenizer: Tokenizer) -> None:
    """Lower-case texts first, as sentence-transformers does where a folder asks for it."""
    steps = [Lowercase()] if tokenizer.normalizer is None else [Lowercase(), tokenizer.normalizer]
    tokenizer.normalizer = Sequence(steps)


def _positions(model: Any, tokenizer: Any) -> int:
    """Return the maximum number of tokens of a text.

    RoBERTa and MPNet number positions from padding_idx + 1 on, so they have fewer than their table.
    """
    limits = [512]
    if (positions := getattr(model.config, "max_position_embeddings", None)) and positions > 0:
        table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        limits = [positions - (0 if padding is None else padding + 1)]
    if tokenizer.model_max_length < 1_000_000:
        limits.append(tokenizer.model_max_length)
    return int(min(limits))


@contextlib.contextmanager
def _as_model_error(folder: Path) -> Iterator[None]:
    """Turn any exception of the libraries for a folder that they cannot load into a ModelError.

    transformers, huggingface_hub, safetensors, tokenizers and pickle have no common base class.
    """
    try:
        yield
    except MirrorError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()[:40]) or repr(error)
        raise ModelError(f"{folder} cannot be loaded: {reason}") from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' bars and loading reports: missing weights are errors here anyway."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
