"""The graphs of a bundle: traced from PyTorch, derived from that, and compared with PyTorch."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from mirror_export.config import ExportConfig
from mirror_export.graph import GraphReport, export_graph
from mirror_export.parity import PARITY_BATCH, compare, parity_texts
from mirror_rt import Encoder, Manifest
from mirror_rt.encoding import Vectors
from mirror_rt.manifest import Layout, Variant
from mirror_train.families import FAMILIES, GENERIC, family_of
from mirror_train.head import Head
from mirror_train.pretrained import Pretrained
from mirror_train.torch_encoder import TorchEncoder

__all__ = ["Reference", "trace", "write_variants"]

logger = logging.getLogger("mirror_export")


@dataclass(frozen=True, slots=True)
class Reference:
    """What is kept of a model in PyTorch once its graph is written.

    Attributes:
        texts: n strings.
        vectors: of them, by PyTorch, unit, float32 [n, D].
        graph: what the float32 graph is made of.
    """

    texts: list[str]
    vectors: Vectors
    graph: GraphReport


def trace(
    pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path, config: ExportConfig
) -> Reference:
    """Write the float32 graph into `folder` and encode the parity texts with PyTorch.

    `pretrained` gives its tokenizer up: it cannot be saved any more.
    """
    graph = _write_graph(pretrained, head, folder)
    texts, vectors = _expected(pretrained, head, manifest, config)
    return Reference(texts, vectors, graph)


def write_variants(
    folder: Path, manifest: Manifest, reference: Reference, config: ExportConfig
) -> dict[str, Variant]:
    """Derive every variant from the float32 graph in `folder` and compare each with PyTorch.

    Raises:
        ParityError: a variant fails its gate, and the configuration does not force it.
    """
    fp32 = Variant(Layout.model, "fp32", "cpu", reference.graph.to_dict())
    described = dataclasses.replace(manifest, variants={"fp32": fp32})
    exported = Encoder(
        folder, described, providers=["CPUExecutionProvider"], threads=config.threads
    )
    report = compare(reference.vectors, exported, reference.texts)
    report.check()
    return {"fp32": dataclasses.replace(fp32, parity=report.to_dict())}


def _write_graph(pretrained: Pretrained, head: Head, folder: Path) -> GraphReport:
    path = folder / Layout.model
    path.parent.mkdir()
    report = export_graph(
        pretrained.model,
        path,
        head=head,
        input_names=_input_names(pretrained),
        max_length=pretrained.max_length,
    )
    _tell_of_missing_fusion(pretrained, report)
    return report


def _input_names(pretrained: Pretrained) -> tuple[str, ...]:
    """The graph's inputs: token types where both the model and its tokenizer have them."""
    model = pretrained.model
    typed = family_of(model).token_types and getattr(model.config, "type_vocab_size", 0) > 0
    given = "token_type_ids" in pretrained.hf_tokenizer.model_input_names
    return ("input_ids", "attention_mask", *(("token_type_ids",) if typed and given else ()))


def _tell_of_missing_fusion(pretrained: Pretrained, report: GraphReport) -> None:
    family, config = family_of(pretrained.model), pretrained.model.config
    if family is GENERIC:
        logger.warning(
            "no fusion is known for the family %r: its attention stays as PyTorch wrote it, which "
            "works (known are %s)",
            config.model_type,
            ", ".join(FAMILIES),
        )
        return
    for operator, count in family.expected(config.num_hidden_layers).items():
        names = ("BiasGelu", "FastGelu") if operator == "BiasGelu" else (operator,)
        found = sum(report.fused.get(name, 0) for name in names)
        if found < count:
            logger.warning("%s: fused %d of %d; the graph works", operator, found, count)


def _expected(
    pretrained: Pretrained, head: Head, manifest: Manifest, config: ExportConfig
) -> tuple[list[str], Vectors]:
    """Texts to compare on and PyTorch's vectors [n, D]; `pretrained` gives its tokenizer up."""
    tokenizer = pretrained.text_tokenizer(manifest.max_length, copy=False)
    texts = config.parity_texts or parity_texts(tokenizer)
    reference = TorchEncoder(
        pretrained,
        head=head,
        max_length=manifest.max_length,
        pad_to=manifest.pad_to,
        copy_tokenizer=False,
    )
    return texts, reference.encode(texts, batch_size=PARITY_BATCH, normalize_embeddings=True)
