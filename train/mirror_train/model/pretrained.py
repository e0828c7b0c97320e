"""Load a Hugging Face encoder and its tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from mirror_rt.bundle.declarations import DOCUMENT
from mirror_rt.bundle.description import ModelDescription, describe_folder
from mirror_rt.bundle.families import family_of, positions
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.io.atomic import sha256
from mirror_rt.tokens.settings import lowercase_first
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_train.model.dense import check_finite
from mirror_train.model.dropout import set_dropout
from mirror_train.model.model_checks import (
    as_model_error,
    check_architecture,
    check_folder,
    check_size,
    check_tokenizer,
    check_weights,
    weight_files,
)
from mirror_train.model.model_folder import DEFAULT_MODEL, resolve_model


@dataclass(frozen=True, slots=True)
class Pretrained:
    """An encoder and its tokenizer.

    Attributes:
        name: the path or hub name that the user gave.
        revision: commit on the hub; None for a local folder.
        description: the declarations of the local folder, or of that of the files downloaded from
            the hub.
        model: the transformers model, in evaluation mode, without its pooler head (which a
            classifier keeps).
        hf_tokenizer: the transformers tokenizer, to be saved beside the model.
        max_length: maximum number of tokens of a text that the model has positions for; of one that
            takes any number, those that it declares, else 512.
        pooler: linear layer of the pooler head; None where there is none, or it is not trained.
        classifier: the whole model, of whose encoder `model` is a part, with the head that makes
            logits; None where none was asked for, or the folder is that of an encoder.
    """

    name: str
    revision: str | None
    description: ModelDescription
    model: PreTrainedModel
    hf_tokenizer: Any
    max_length: int
    pooler: torch.nn.Linear | None = None
    classifier: PreTrainedModel | None = None

    @property
    def folder(self) -> Path:
        """The local folder, or the folder of the files downloaded from the hub."""
        return self.description.folder

    @property
    def model_folder(self) -> Path:
        """The transformer's own folder; a subfolder of `folder` in old layouts, else the same."""
        return self.description.transformer

    @property
    def cuts_left(self) -> bool:
        """Whether long texts lose their beginnings."""
        return bool(self.hf_tokenizer.truncation_side == "left")

    @property
    def gives_token_types(self) -> bool:
        """Whether the tokenizer tells the two texts of a pair apart, where the model does."""
        return "token_type_ids" in self.hf_tokenizer.model_input_names

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
        return [sha256(path) for path in weight_files(self.model_folder)]

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
        return TextTokenizer(
            backend, max_length=max_length, pad_id=self.pad_id, copy=copy, left=self.cuts_left
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A model that was found, and the declarations in its folder, before it is loaded.

    Attributes:
        name: the path or hub name that the user gave.
        revision: commit on the hub; None for a local folder.
        description: the declarations of the folder.
        trust_remote_code: whether code that comes with the model is run.
    """

    name: str
    revision: str | None
    description: ModelDescription
    trust_remote_code: bool

    @classmethod
    def find(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        offline: bool = False,
        trust_remote_code: bool = False,
    ) -> Source:
        """Find a model in a folder, on the hub, or the embedded default, and describe it."""
        root, commit = resolve_model(str(name), revision=revision, offline=offline)
        with as_model_error():
            describe = partial(
                describe_folder,
                root,
                formats=("mirror_rt encoder",),
                allowed=("auto_map",) if trust_remote_code else (),
            )
            description = describe()
            if description.kind == "SparseEncoder":  # its queries may have a way of their own
                description = describe(route=DOCUMENT)
        return cls(str(name), commit, description, trust_remote_code)

    def load(self, *, dropout: float | None = None, classifier: bool = False) -> Pretrained:
        """Load the model in float32; the global random state is left as it was.

        A `dropout` is set as the rate of every dropout of the model; None leaves its own. With
        `classifier`, the head of a sequence classification is loaded, too, where there is one.
        """
        description, trust_remote_code = self.description, self.trust_remote_code
        folder = description.transformer
        # Weights that the folder lacks are drawn, before they are dropped or refused.
        drawn = torch.random.fork_rng(devices=[])
        with quiet_transformers(), as_model_error(folder), drawn:
            check_folder(description, trust_remote_code)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
            check_architecture(folder, config)
            if not trust_remote_code:
                check_size(folder, config)
            if dropout is not None:
                set_dropout(config, dropout)
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
            classifies = classifier and description.is_classifier
            whole, report = (
                AutoModelForSequenceClassification if classifies else AutoModel
            ).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
            tokenizer.pad_token = tokenizer.eos_token  # as of Llama; masked wherever it pads
        check_weights(folder, report, optional=() if classifies else ("pooler.",))
        check_tokenizer(folder, tokenizer, config)
        check_finite(whole, folder)
        model, pooler = whole.base_model, None
        if family_of(model).pooler and not classifies:
            # A head for next-sentence prediction, which embeddings do not use.
            if not any(key.startswith("pooler.") for key in report["missing_keys"]):
                pooler = getattr(model.pooler, "dense", None)
            model.pooler = None
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        if description.tokenizer.lowercase:
            lowercase_first(tokenizer.backend_tokenizer)
        own = description.declared_length
        return Pretrained(
            self.name,
            self.revision,
            description,
            model.eval(),
            tokenizer,
            positions(model.config.to_dict(), own) or own or 512,
            pooler,
            whole.eval() if classifies else None,
        )


def load_pretrained(
    name: str | Path = DEFAULT_MODEL,
    *,
    dropout: float | None = None,
    classifier: bool = False,
    **where: Any,
) -> Pretrained:
    """Load an encoder in float32: `Source.find` with `name` and `where`, and `Source.load`."""
    return Source.find(name, **where).load(dropout=dropout, classifier=classifier)


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
