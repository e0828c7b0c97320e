"""Trace a model into the float32 graph of a bundle, and encode the texts to compare it on."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_export.config import ExportConfig
from mirror_export.graph.torch_export import export_graph
from mirror_export.graph.weight_table import ModuleWeights, table_of
from mirror_export.kinds.dense import Exported, Reference, Traceable
from mirror_export.load import Loaded
from mirror_export.parity import parity_texts
from mirror_rt import Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.families import FAMILIES, family_of, takes_token_types
from mirror_rt.bundle.manifest import Layout, with_records
from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.heads.task_heads import Heads
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules

logger = logging.getLogger("mirror_export")


@dataclass(frozen=True, slots=True)
class Traced:
    """A bundle in the making with its float32 graph, and PyTorch's results to compare with.

    Attributes:
        config: the model and the options of the export.
        folder: where the bundle is made.
        manifest: that of the bundle, without its variants, with the files of the float32 graph.
        graph: description of the float32 graph.
        reference: the results of the PyTorch model.
        pairs: text pairs with human scores; None if none were given.
        kind: the class of its kind of model.
    """

    config: ExportConfig
    folder: Path
    manifest: Manifest
    graph: dict[str, Any]
    reference: Reference
    pairs: ScoredPairs | None = None
    kind: type[Exported] = Exported


def trace(loaded: Loaded, folder: Path) -> Traced:
    """Write the float32 graph and the files beside it; encode the parity texts with PyTorch.

    The model is of no use afterwards: its tokenizer is taken, and its weights are freed.
    """
    pretrained, manifest = loaded.pretrained, loaded.manifest
    pairs = _read_pairs(loaded.config.parity_pairs, manifest.language)  # before any work
    _write_companions(loaded, folder)
    path = folder / Layout.model
    path.parent.mkdir()
    names = _input_names(pretrained)
    graph, placed = export_graph(
        pretrained.model,
        path,
        head=loaded.head,
        scores=loaded.own.scores,
        input_names=names,
        max_length=pretrained.max_length,
    )
    described = describe_folder(folder, manifest=manifest)
    weights = ModuleWeights(pretrained.model, path)
    table = table_of(described, weights, placed, typed="token_type_ids" in names)
    # The engine, in which variants are compared, takes a table of a file that is recorded.
    manifest = with_records(dataclasses.replace(manifest, native=table), folder)
    del placed, weights
    _tell_of_missing_fusion(pretrained, graph["fused"])
    tokenizer = pretrained.text_tokenizer(manifest.max_length, copy=False)
    texts: list[Any] = loaded.config.parity_texts or parity_texts(tokenizer, manifest.language)
    reference = loaded.own.run(Traceable(pretrained, loaded.head, described), texts, pairs)
    for parameter in pretrained.model.parameters():
        parameter.data = parameter.data.new_empty(0)  # the exporter's rules would keep them alive
    kind = type(loaded.own)
    return Traced(loaded.config, folder, manifest, graph, reference, pairs, kind)


def _write_companions(loaded: Loaded, folder: Path) -> None:
    """Write the tokenizer, configuration, modules and heads of a bundle into `folder`."""
    pretrained, manifest = loaded.pretrained, loaded.manifest
    save_tokenizer(pretrained.hf_tokenizer, folder, max_length=manifest.max_length)
    config = pretrained.model.config
    loaded.own.write(folder)
    if loaded.own.described is not None:
        config.save_pretrained(folder)
        return
    config.architectures = [type(pretrained.model).__name__]  # without task layers
    config.save_pretrained(folder)
    write_modules(
        folder,
        loaded.head,
        manifest,
        hidden_size=pretrained.dimension,
        similarity=pretrained.description.similarity,
    )
    _write_heads(pretrained.folder, manifest, folder)


def _write_heads(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy the task heads, if the bundle gives the kind of vectors that they were trained on."""
    if not Heads.present(source):
        return
    heads = Heads.read(source)
    if (heads.dimension, heads.pooling) != (manifest.dimension, manifest.pooling):
        logger.warning(
            "the task heads of %s are left out: they take %d dimensions by %s pooling, the bundle "
            "gives %d by %s",
            source,
            heads.dimension,
            heads.pooling,
            manifest.dimension,
            manifest.pooling,
        )
        return
    heads.write(folder)


def _input_names(pretrained: Pretrained) -> tuple[str, ...]:
    """Return the names of the graph's inputs: token types if both model and tokenizer have them.

    The tokenizer decides, as in transformers: a RoBERTa may have that of a BERT.
    """
    given = pretrained.gives_token_types and takes_token_types(pretrained.model)
    return ("input_ids", "attention_mask", *(("token_type_ids",) if given else ()))


def _tell_of_missing_fusion(pretrained: Pretrained, fused: dict[str, int]) -> None:
    family, config = family_of(pretrained.model), pretrained.model.config
    if not family.fused:
        logger.warning(
            "no fusion is known for the family %r: its attention stays as PyTorch wrote it, which "
            "works (known are %s)",
            config.model_type,
            ", ".join(name for name, known in FAMILIES.items() if known.fused),
        )
        return
    for operator, count in family.expected(config.num_hidden_layers).items():
        names = ("BiasGelu", "FastGelu") if operator == "BiasGelu" else (operator,)
        found = sum(fused.get(name, 0) for name in names)
        if found < count:
            logger.warning("%s: fused %d of %d; the graph works", operator, found, count)


def _read_pairs(path: Path | None, language: str | None) -> ScoredPairs | None:
    """Read the pairs from a file, or from LANGUAGE.tsv in a folder."""
    if path is None:
        return None
    if not path.is_dir():
        return read_scored_pairs(path)
    file = path / f"{language}.tsv"
    if language is None or not file.is_file():
        raise ConfigError(
            f"--parity-pairs {path}: the folder has no {language}.tsv for a model of language "
            f"{language}: pass a file, or a folder with one for every language"
        )
    return read_scored_pairs(file)
