"""From a Hugging Face folder to a bundle: graph, tokenizer, manifest, parity."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mirror_export.graph import GraphReport, export_graph
from mirror_export.parity import PARITY_BATCH, ParityReport, compare, parity_texts
from mirror_rt import Encoder, Manifest, __version__
from mirror_rt.encoding import Vectors
from mirror_rt.errors import ConfigError, ModelError, require
from mirror_rt.files import check_free, new_folder, write_json
from mirror_rt.manifest import Layout, Pooling, record_files
from mirror_train.families import FAMILIES, family_of
from mirror_train.pooling import (
    declared_pad_to,
    declared_pooling,
    write_sentence_transformers_modules,
)
from mirror_train.pretrained import Pretrained, load_pretrained
from mirror_train.torch_encoder import TorchEncoder

__all__ = ["ExportConfig", "export_bundle"]

logger = logging.getLogger("mirror_export")


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """How to export.

    Attributes:
        model: tuned folder, or any encoder's folder or hub name.
        out: bundle to write.
        pooling: `auto` takes what the folder declares.
        parity_texts: strings to compare over; None for the built-in multilingual sample.
        revision: branch, tag or commit on the hub.
        overwrite: replace an existing bundle.
        offline: never ask the network.
    """

    model: str
    out: Path
    pooling: Pooling | Literal["auto"] = "auto"
    parity_texts: list[str] | None = None
    revision: str | None = None
    overwrite: bool = False
    offline: bool = False


def export_bundle(config: ExportConfig) -> ParityReport:
    """Export a model as a bundle and compare it with PyTorch; refuse it where they differ.

    Raises:
        ModelError: the model cannot be loaded or traced, or its pooling is not supported.
        ParityError: the graph disagrees with PyTorch; nothing is written.
        OutputExistsError: `out` exists.
        ConfigError: `out` is the model's own folder.
        BundleIntegrityError: a tuned folder was changed since it was written.
    """
    require("onnxruntime", extra="cpu|gpu", purpose="checking an exported bundle")
    check_free(config.out, overwrite=config.overwrite)
    if config.out.resolve() in (
        Path(config.model).resolve(),
        *Path(config.model).resolve().parents,
    ):
        raise ConfigError(f"--out {config.out} would replace the model {config.model} itself")
    pretrained = load_pretrained(config.model, revision=config.revision, offline=config.offline)
    manifest = _manifest(pretrained, config)
    with new_folder(config.out, overwrite=config.overwrite) as folder:
        graph = _write_graph(pretrained, manifest, folder)
        _write_tokenizer(pretrained, folder)
        write_sentence_transformers_modules(folder, manifest.pooling, manifest.dimension)
        texts, expected = _expected(pretrained, manifest, config)
        del pretrained
        gc.collect()  # the model makes room for the bundle, loaded as a user will load it
        exported = Encoder(folder, manifest, providers=["CPUExecutionProvider"])
        report = compare(expected, exported, texts)
        report.check()
        manifest = dataclasses.replace(
            manifest,
            graph=graph.to_dict(),
            parity=report.to_dict(),
            files=record_files(folder),
        )
        write_json(folder / Layout.manifest, manifest.to_dict())
    return report


def _manifest(pretrained: Pretrained, config: ExportConfig) -> Manifest:
    pooling = declared_pooling(pretrained.folder) if config.pooling == "auto" else config.pooling
    if pooling is None:
        raise ModelError(
            f"{config.model} declares no pooling: pass --pooling cls or --pooling mean"
        )
    pad_to = declared_pad_to(pretrained.folder)
    if pooling == "mean-with-padding" and pad_to is None:
        raise ConfigError("pooling mean-with-padding needs a folder that was tuned with it")
    if (pretrained.folder / Layout.manifest).is_file():
        manifest = Manifest.read(pretrained.folder, "mirror_rt encoder")
        manifest.verify(pretrained.folder)  # or the bundle would name a history that is not its own
    else:
        manifest = Manifest(
            dimension=pretrained.dimension,
            max_length=pretrained.max_length,
            pad_id=pretrained.pad_id,
            pooling=pooling,
            mask_token=pretrained.mask_token,
            base_model={"name": pretrained.public_name, "revision": pretrained.revision},
        )
    return dataclasses.replace(
        manifest,
        pooling=pooling,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        generator=f"mirror-rt {__version__}",
        format="mirror_rt bundle",
    )


def _write_graph(pretrained: Pretrained, manifest: Manifest, folder: Path) -> GraphReport:
    path = folder / Layout.model
    path.parent.mkdir()
    report = export_graph(
        pretrained.model,
        path,
        pooling=manifest.pooling,
        input_names=_input_names(pretrained),
        max_length=pretrained.max_length,
    )
    _tell_of_missing_fusion(pretrained, report)
    return report


def _input_names(pretrained: Pretrained) -> tuple[str, ...]:
    """The graph's inputs: token types where both the model and its tokenizer have them."""
    config = pretrained.model.config
    typed = family_of(config).token_types and getattr(config, "type_vocab_size", 0) > 0
    given = "token_type_ids" in pretrained.hf_tokenizer.model_input_names
    return ("input_ids", "attention_mask", *(("token_type_ids",) if typed and given else ()))


def _tell_of_missing_fusion(pretrained: Pretrained, report: GraphReport) -> None:
    config = pretrained.model.config
    if config.model_type not in FAMILIES:
        logger.warning(
            "no fusion is known for the family %r: its attention stays as PyTorch wrote it, which "
            "works (known are %s)",
            config.model_type,
            ", ".join(FAMILIES),
        )
        return
    for operator, count in family_of(config).expected(config.num_hidden_layers).items():
        names = ("BiasGelu", "FastGelu") if operator == "BiasGelu" else (operator,)
        found = sum(report.fused.get(name, 0) for name in names)
        if found < count:
            logger.warning("%s: fused %d of %d; the graph works", operator, found, count)


def _write_tokenizer(pretrained: Pretrained, folder: Path) -> None:
    pretrained.hf_tokenizer.save_pretrained(folder)
    pretrained.model.config.save_pretrained(folder)


def _expected(
    pretrained: Pretrained, manifest: Manifest, config: ExportConfig
) -> tuple[list[str], Vectors]:
    """Texts to compare on and PyTorch's vectors [n, D]; `pretrained` gives its tokenizer up."""
    tokenizer = pretrained.text_tokenizer(manifest.max_length, copy=False)
    texts = config.parity_texts or parity_texts(tokenizer)
    reference = TorchEncoder(
        pretrained, pooling=manifest.pooling, pad_to=manifest.pad_to, copy_tokenizer=False
    )
    return texts, reference.encode(texts, batch_size=PARITY_BATCH)
