"""Load the model to export, choose its head, and write its manifest but for variants and files."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_export.config import KINDS, ExportConfig
from mirror_export.kinds.dense import Exported
from mirror_export.kinds.pairs import Pairs
from mirror_export.kinds.tokens import Tokens
from mirror_export.kinds.words import Words
from mirror_rt import Manifest
from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.bundle.model_kinds import DENSE, LATE, WORDS
from mirror_rt.errors import ConfigError, ModelError, Setting
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.io.atomic import check_free
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.license import describe_base
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, Source

logger = logging.getLogger("mirror_export")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in PyTorch, with all that its bundle will be but for the graphs.

    Attributes:
        config: the model and the options of the export.
        pretrained: the model and its tokenizer.
        head: makes text vectors; of a cross-encoder, those that its own head reads.
        manifest: that of the bundle, without its variants and files.
        own: the rest of a model, by its kind.
    """

    config: ExportConfig
    pretrained: Pretrained
    head: Head
    manifest: Manifest
    own: Exported


def wanted_variants(config: ExportConfig) -> list[str]:
    """Return the names of the variants to write, those in `KINDS`."""
    if not config.precisions or not config.targets:
        raise ConfigError("at least one precision and one target are needed")
    if "int8" in config.precisions and not {"cpu", "native"} & set(config.targets):
        raise ConfigError("precision int8 is for the CPU: add the target cpu, or leave int8 out")
    if "bf16" in config.precisions and not {"cuda", "native"} & set(config.targets):
        raise ConfigError(
            "precision bf16 is for NVIDIA cards and the native engine: add the target cuda or "
            "native"
        )
    return [
        name
        for name, kind in KINDS.items()
        if kind.precision in config.precisions and kind.target in config.targets
    ]


def find(config: ExportConfig) -> Source:
    """Check the options of an export, find the model, and read the declarations of its folder."""
    import_onnxruntime("checking an exported bundle")
    check_free(config.out, overwrite=config.overwrite)
    model = Path(config.model).resolve()
    if config.out.resolve() in (model, *model.parents):
        raise ConfigError(f"--out {config.out} would replace the model {config.model} itself")
    options = {name: getattr(config, name) for name in ("revision", "offline", "trust_remote_code")}
    return Source.find(config.model, **options)


def load(config: ExportConfig) -> Loaded:
    """Load the model to export, and choose the head and the manifest of its bundle."""
    pretrained = find(config).load(classifier=config.pooling == "auto")
    kind = pretrained.description.own_kind if config.pooling == "auto" else DENSE
    if kind is LATE:
        return _load_late(config, pretrained)
    own = Exported()
    if kind is WORDS:
        own = Words.read(pretrained)
    elif pretrained.classifier is not None:
        own = Pairs.read(pretrained)
    head = _head(pretrained, config, own.pooling)
    if (manifest := pretrained.description.manifest) is not None:
        manifest.verify(pretrained.folder)  # or its provenance would not be that of the weights
    else:
        manifest = _of_foreign(pretrained, head)
    dimension = head.dimension(pretrained.dimension)
    manifest = dataclasses.replace(
        manifest,
        dimension=dimension,
        matryoshka=[part for part in manifest.matryoshka if part < dimension],
        pooling=head.pooling,
        normalize=head.normalize,
        space=_vector_space(pretrained, head) if own.described is None else None,
        max_length=_max_length(pretrained, manifest, config),
        **made_now(),
        **_of_head(own),
    )
    return Loaded(config, pretrained, head, manifest, own)


def _of_head(own: Exported) -> dict[str, Any]:
    """Return the fields of a manifest that tell the kind of the model."""
    if own.described is None:
        return {"format": DENSE.format}
    kind = own.described.kind
    return {"format": kind.format, kind.field: own.described}


def _load_late(config: ExportConfig, pretrained: Pretrained) -> Loaded:
    """Return a late-interaction model, whose folder says how it makes vectors of tokens."""
    for name in ("truncate_dim", "max_length", "parity_pairs"):
        if getattr(config, name) is not None:
            raise ConfigError(Setting(name), " is for encoders, not late-interaction models")
    if "cuda" in config.targets:  # whose graphs leave out tokens that none attends to
        raise ConfigError("the target cuda is for encoders, not late-interaction models")
    own = Tokens.read(pretrained)
    manifest = dataclasses.replace(
        own.manifest, base_model=describe_base(pretrained), variants={}, **made_now(),
        **_of_head(own),
    )  # fmt: skip
    return Loaded(config, pretrained, Head(["mean"], normalize=False), manifest, own)


def _head(pretrained: Pretrained, config: ExportConfig, read: PoolingMode | None) -> Head:
    """Return the head to export: the folder's declared one, or the requested pooling alone.

    Of a cross-encoder `read` is the pooling that its own head reads, of a sparse encoder, whose
    head reads the vectors of tokens, any; None of an encoder.
    """
    if read is not None:
        if config.truncate_dim is not None or config.parity_pairs is not None:
            raise ConfigError("truncate_dim and parity_pairs are for encoders of dense vectors")
        return Head([read], normalize=False)
    asked = None if config.pooling == "auto" else Head([config.pooling])
    head = asked or declared_head(pretrained.description)
    if head is None:
        raise ModelError(
            f"{config.model} declares no pooling: pass --pooling cls or --pooling mean"
        )
    if "mean-with-padding" in head.poolings and pretrained.description.pad_to is None:
        raise ConfigError("pooling mean-with-padding needs a folder that was tuned with it")
    pretrained.check_special_tokens(head.poolings)
    cut = config.truncate_dim
    if cut is None:
        cut = pretrained.description.truncate_dim
    return head if cut is None else head.truncated(cut, pretrained.dimension)


def _vector_space(pretrained: Pretrained, head: Head) -> str:
    """Return an id that is the same for the same weights, pooling and further layers."""
    digest = hashlib.sha256(" ".join(pretrained.weights_sha256()).encode())
    digest.update(f" {head.pooling} {head.truncate_dim}".encode())
    for name, weight in head.layers.state_dict().items():
        digest.update(name.encode() + weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _of_foreign(pretrained: Pretrained, head: Head) -> Manifest:
    settings = pretrained.description
    with as_model_error():
        if settings.own_kind is not WORDS:  # which was checked where its head was read
            settings.check_kind(
                "SentenceTransformer" if pretrained.classifier is None else "CrossEncoder"
            )
    return Manifest(
        dimension=pretrained.dimension,
        max_length=pretrained.max_length,
        pad_id=pretrained.pad_id,
        pooling=head.pooling,
        mask_token=pretrained.mask_token,
        prompts=dict(settings.prompts),
        default_prompt_name=settings.default_prompt_name,
        base_model=describe_base(pretrained),
    )


def _max_length(pretrained: Pretrained, manifest: Manifest, config: ExportConfig) -> int:
    limit = config.max_length
    if limit is None:
        own = pretrained.description.declared_length
        if own is None or own >= manifest.max_length or manifest.pad_to is not None:
            return manifest.max_length
        logger.warning(
            "%s are cut at %d tokens, as the folder declares; the model takes %d "
            "(--max-length model)",
            "texts" if pretrained.classifier is None else "pairs",
            own,
            manifest.max_length,
        )
        return own
    if limit == "model":
        return manifest.max_length
    if manifest.pad_to is not None and limit != manifest.pad_to:
        raise ConfigError(
            field="max_length",
            expected=f"{manifest.pad_to}, which every text is padded to",
            value=limit,
        )
    if not 1 <= limit <= manifest.max_length:
        raise ConfigError(
            field="max_length",
            expected=f"in 1 .. {manifest.max_length}, the limit of {config.model}",
            value=limit,
        )
    return limit
