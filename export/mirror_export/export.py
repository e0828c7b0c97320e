"""Turn a Hugging Face folder into a bundle: graphs, tokenizer, manifest, parity check."""

from __future__ import annotations

import dataclasses
import gc
from contextlib import closing

from mirror_export.check import check
from mirror_export.config import ExportConfig
from mirror_export.derive import derive, remove_others
from mirror_export.load import load, wanted_variants
from mirror_export.trace import Traced, trace
from mirror_rt import Manifest
from mirror_rt.bundle.manifest import Layout, Variant, with_records
from mirror_rt.bundle.model_card import write_model_card
from mirror_rt.encoding.model_cache import give_back_memory
from mirror_rt.io.atomic import new_folder, write_json
from mirror_rt.progress import ProgressBar, progress_bar


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
    bar = progress_bar(
        3 + len(wanted_variants(config)), show_progress_bar, unit="stage", desc="export"
    )
    with closing(bar):
        bar.set_postfix_str("loading the model")
        loaded = load(config)
        with new_folder(config.out, overwrite=config.overwrite) as folder:
            _next(bar, "tracing the graph")
            traced = trace(loaded, folder)
            del loaded  # makes room for the bundle, which is loaded as a user loads it
            gc.collect()  # with the next line: glibc alone keeps 290 MB after a trace
            give_back_memory()
            _next(bar, "deriving the other graphs")
            variants = derive(traced)
            for name, variant in variants.items():
                _next(bar, f"comparing {name} with PyTorch")
                variants[name] = check(traced, name, variant)
            manifest = _write(traced, variants)
            bar.update(1)
    return manifest


def _next(bar: ProgressBar, stage: str) -> None:
    bar.update(1)
    bar.set_postfix_str(stage)


def _write(traced: Traced, variants: dict[str, Variant]) -> Manifest:
    """Write the manifest and the card of a bundle, and remove files that do not belong to it."""
    folder = traced.folder
    remove_others(folder, variants.values())
    manifest = with_records(dataclasses.replace(traced.manifest, variants=variants), folder)
    write_json(folder / Layout.manifest, manifest.to_dict())
    write_model_card(folder, manifest)
    return manifest
