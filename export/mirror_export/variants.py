"""Make the graphs of a bundle: trace one from PyTorch, derive the others, and compare them all."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mirror_export.config import ExportConfig
from mirror_export.cross_encoder import TorchScores, parity_pairs
from mirror_export.derive import (
    KINDS,
    derive,
    find_sensitive_layers,
    graph_bytes,
    remove_graph,
    write_graph,
)
from mirror_export.graph.onnx_file import remove_sources
from mirror_export.graph.torch_export import export_graph
from mirror_export.parity import (
    GATES,
    PARITY_BATCH,
    SCORE_GATES,
    ParityReport,
    compare,
    compare_scores,
)
from mirror_export.sample import parity_texts
from mirror_rt import Encoder, Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.families import FAMILIES, GENERIC, family_of, takes_token_types
from mirror_rt.bundle.manifest import Layout, Target, Variant
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import ScoredPairs, evaluate_similarity, read_scored_pairs
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.providers import NATIVE
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.reranking.reranker import PairPipeline, Reranker
from mirror_rt.tokens.pairs import Pair, PairTokenizer
from mirror_rt.tokens.windows import text_windows
from mirror_rt.vectors.normalization import normalize_rows
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder, TorchModel

logger = logging.getLogger("mirror_export")

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@dataclass(frozen=True, slots=True)
class Reference:
    """The part of a PyTorch model that is kept once its graph is written.

    Attributes:
        texts: n texts, or pairs of a cross-encoder, to compare on.
        vectors: PyTorch's unit vectors of the texts or pairs, float32 [n, D].
        graph: description of the float32 graph.
        pairs: text pairs with human scores; None if none were given.
        spearman: Spearman's correlation of PyTorch's cosines with those scores.
        scores: PyTorch's logits of the pairs, float32 [n, C]; None of an encoder.
    """

    texts: list[Any]
    vectors: Vectors
    graph: dict[str, Any]
    pairs: ScoredPairs | None = None
    spearman: float | None = None
    scores: Vectors | None = None


def trace(
    pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path, config: ExportConfig
) -> Reference:
    """Write the float32 graph into `folder` and encode the parity texts with PyTorch.

    This takes the tokenizer of `pretrained` away, so it cannot be saved afterwards.
    """
    pairs = _read_pairs(config.parity_pairs, manifest.language)  # before any work
    path = folder / Layout.model
    path.parent.mkdir()
    names, limit = _input_names(pretrained), pretrained.max_length
    graph = export_graph(pretrained.model, path, head=head, input_names=names, max_length=limit)
    _tell_of_missing_fusion(pretrained, graph["fused"])
    tokenizer = pretrained.text_tokenizer(manifest.max_length, copy=False)
    texts = config.parity_texts or parity_texts(tokenizer, manifest.language)
    if pretrained.classifier is not None:
        return _score(pretrained, head, manifest, parity_pairs(texts), names, graph)
    encoder = TorchEncoder(
        pretrained,
        head=head,
        max_length=manifest.max_length,
        pad_to=manifest.pad_to,
        copy_tokenizer=False,
    )
    vectors = encoder.encode(texts, batch_size=PARITY_BATCH, normalize_embeddings=True)
    spearman = evaluate_similarity(encoder, pairs) if pairs else None
    return Reference(texts, vectors, graph, pairs, spearman)


def _score(
    pretrained: Pretrained,
    head: Head,
    manifest: Manifest,
    pairs: list[Pair],
    names: tuple[str, ...],
    graph: dict[str, Any],
) -> Reference:
    """Score the parity pairs with PyTorch, and keep their vectors, on which layers are measured."""
    tokenizer = PairTokenizer(
        pretrained.hf_tokenizer.backend_tokenizer,
        max_length=manifest.max_length,
        pad_id=manifest.pad_id,
        copy=False,
        left=pretrained.cuts_left,
        types=pretrained.gives_token_types,
    )
    models = (
        TorchScores(pretrained.classifier, names),
        TorchModel(pretrained, head, torch.device("cpu")),
    )
    scores, vectors = (
        pipeline.encode(text_windows(pairs, invalid={}), pipeline.plan(batch_size=PARITY_BATCH))
        for pipeline in (PairPipeline(tokenizer, model) for model in models)
    )
    unit = normalize_rows(vectors.embeddings)
    return Reference(pairs, unit, graph, scores=scores.embeddings)


def check_wanted(config: ExportConfig) -> list[str]:
    """Return the names of the variants that a configuration asks for."""
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


def write_variants(
    folder: Path,
    manifest: Manifest,
    reference: Reference,
    config: ExportConfig,
    begin: Callable[[str], None],
) -> dict[str, Variant]:
    """Derive every variant from the float32 graph in `folder` and compare each with PyTorch.

    `begin` is called with the name of each stage.
    """
    variants = {}
    begin("deriving the other graphs")
    derived = derive(folder, manifest, reference.texts, reference.graph, check_wanted(config))
    for name, variant in derived.items():
        begin(f"comparing {name} with PyTorch")
        check = functools.partial(_compared, folder, manifest, reference, config.threads, name)
        compared, report = check(variant)
        if name == "int8" and report is not None and report.failures():
            keep = find_sensitive_layers(folder, manifest, reference.texts, reference.vectors)
            graph = write_graph(folder, name, keep)
            compared, report = check(dataclasses.replace(variant, graph=graph))
        if report is not None and not config.force:
            report.check(name)
        elif report is not None and (failures := report.failures()):
            logger.warning("variant %s differs from PyTorch: %s", name, "; ".join(failures))
        variants[name] = compared
    for file in {kind.file for kind in KINDS.values()} - {v.file for v in variants.values()}:
        remove_graph(folder, file)
    remove_sources((folder / Layout.model).parent)
    return variants


def _compared(
    folder: Path,
    manifest: Manifest,
    reference: Reference,
    threads: int | None,
    name: str,
    variant: Variant,
) -> tuple[Variant, ParityReport | None]:
    """Return the variant with its parity, or with the reason why it was not checked."""
    provider = _CPU
    on_card = (variant.precision, variant.target) == ("bf16", "cuda")  # no kernels on the CPU
    if on_card or "PackedMultiHeadAttention" in variant.graph["fused"]:
        onnxruntime = import_onnxruntime("checking a bundle")
        if _CUDA not in onnxruntime.get_available_providers():
            unchecked = f"needs {_CUDA}, which is not here"
            return dataclasses.replace(variant, unchecked=unchecked), None
        provider = _CUDA
    # A graph without operators that only CUDA has is compared on the CPU, whatever its target.
    native = variant.target == "native"
    target: Target = "native" if native else "cuda" if provider == _CUDA else "cpu"
    runs = dataclasses.replace(variant, target=target)
    described = describe_folder(
        folder, manifest=dataclasses.replace(manifest, variants={name: runs})
    )
    options = LoadOptions(verify=False, providers=[provider], threads=threads)
    if native:
        provider = NATIVE
        options = dataclasses.replace(options, providers=NATIVE, variant=name)
    exported: Encoder | Reranker
    if reference.scores is not None:
        exported = Reranker(described, options)
        report = compare_scores(reference.scores, exported, reference.texts)
        report = dataclasses.replace(report, gate=SCORE_GATES[variant.precision])
    else:
        exported = Encoder(described, options)
        report = compare(reference.vectors, exported, reference.texts, GATES[variant.precision])
    parity = report.to_dict() | {
        "provider": provider,
        "bytes": graph_bytes(folder, variant.file),
    }
    if reference.pairs is not None and isinstance(exported, Encoder):
        defined = parity["mean_cosine"] is not None  # vectors of NaN have no order
        parity |= {
            "spearman": evaluate_similarity(exported, reference.pairs) if defined else None,
            "spearman_pytorch": reference.spearman,
            "spearman_pairs": len(reference.pairs.scores),
        }
    return dataclasses.replace(variant, parity=parity), report


def _input_names(pretrained: Pretrained) -> tuple[str, ...]:
    """Return the names of the graph's inputs: token types if both model and tokenizer have them.

    The tokenizer decides, as in transformers: a RoBERTa may have that of a BERT.
    """
    given = pretrained.gives_token_types and takes_token_types(pretrained.model)
    return ("input_ids", "attention_mask", *(("token_type_ids",) if given else ()))


def _tell_of_missing_fusion(pretrained: Pretrained, fused: dict[str, int]) -> None:
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
