"""Turn a Hugging Face folder into a bundle: graphs, tokenizer, manifest, parity check."""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from mirror_export.config import ExportConfig
from mirror_export.cross_encoder import score_head
from mirror_export.describe import choose_head, describe
from mirror_export.variants import check_wanted, trace, write_variants
from mirror_rt import Manifest
from mirror_rt.bundle.manifest import Layout, record_files
from mirror_rt.bundle.model_card import write_model_card
from mirror_rt.encoding.model_cache import give_back_memory
from mirror_rt.errors import ConfigError
from mirror_rt.heads.task_heads import Heads
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.io.atomic import check_free, new_folder, write_json
from mirror_rt.progress import progress_bar
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules

logger = logging.getLogger("mirror_export")

_FIRST = "loading the model"


def export_bundle(config: ExportConfig, *, show_progress_bar: bool | None = None) -> Manifest:
    """Export a model as a bundle, and refuse it if its vectors differ from PyTorch's.

    Args:
        config: which model to export, and how.
        show_progress_bar: whether to show which stage runs; None as `mirror_rt.progress` has it.

    Returns:
        The manifest that was written as mirror.json.

    Raises:
        ModelError: the model cannot be loaded or traced, or its pooling is not supported.
        ParityError: a graph disagrees with PyTorch; nothing is written.
        OutputExistsError: `out` exists.
        ConfigError: `out` is the model's own folder, `max_length` or `truncate_dim` is out of
            range, options do not go together, or the folder of pairs lacks the model's language.
        DataError: the file of pairs cannot be used.
        BundleIntegrityError: a tuned folder was changed since it was written.
    """
    wanted = check_wanted(config)
    import_onnxruntime("checking an exported bundle")
    check_free(config.out, overwrite=config.overwrite)
    model = Path(config.model).resolve()
    if config.out.resolve() in (model, *model.parents):
        raise ConfigError(f"--out {config.out} would replace the model {config.model} itself")
    bar = progress_bar(3 + len(wanted), show_progress_bar, unit="stage", desc="export")

    def begin(stage: str) -> None:
        if stage != _FIRST:
            bar.update(1)
        bar.set_postfix_str(stage)

    with closing(bar):
        manifest = _export(config, begin)
        bar.update(1)
    return manifest


def _export(config: ExportConfig, begin: Callable[[str], None]) -> Manifest:
    """Export a model; call `begin` with the name of each stage."""
    begin(_FIRST)
    pretrained = load_pretrained(
        config.model,
        revision=config.revision,
        offline=config.offline,
        trust_remote_code=config.trust_remote_code,
        classifier=config.pooling == "auto",
    )
    head = choose_head(pretrained, config)
    scores = None if pretrained.classifier is None else score_head(pretrained)
    manifest = describe(pretrained, head, config, None if scores is None else scores.described)
    with new_folder(config.out, overwrite=config.overwrite) as folder:
        begin("tracing the graph")
        _write_companions(pretrained, head, manifest, folder)
        if scores is not None:
            scores.write(folder)
        reference = trace(pretrained, head, manifest, folder, config)
        _release(pretrained)
        del pretrained
        gc.collect()  # with the next line: glibc alone keeps 290 MB after a trace
        give_back_memory()  # makes room for the bundle, which is now loaded as a user loads it
        variants = write_variants(folder, manifest, reference, config, begin)
        manifest = dataclasses.replace(manifest, variants=variants, files=record_files(folder))
        write_json(folder / Layout.manifest, manifest.to_dict())
        write_model_card(folder, manifest)
    return manifest


def _release(pretrained: Pretrained) -> None:
    """Free the weights, which the exporter's rewrite rules would keep alive."""
    for parameter in pretrained.model.parameters():
        parameter.data = parameter.data.new_empty(0)


def _write_companions(pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path) -> None:
    """Write the tokenizer, configuration, modules and task heads of a bundle into `folder`."""
    save_tokenizer(pretrained.hf_tokenizer, folder, max_length=manifest.max_length)
    config = pretrained.model.config
    if pretrained.classifier is not None:
        config.save_pretrained(folder)
        return
    config.architectures = [type(pretrained.model).__name__]  # without task layers
    config.save_pretrained(folder)
    write_modules(
        folder,
        head,
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
