"""Run `mirror-rt encode`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from mirror_rt.bulk import (
    BulkConfig,
    BulkReport,
    DatasetConfig,
    DatasetReport,
    encode_dataset,
    encode_file,
    merge_manifest,
)
from mirror_rt.bulk.options import JobConfig
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.cli.common import ModelOptions, Quiet
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.io.storage import has_wildcards
from mirror_rt.languages.routing import AUTO, Router
from mirror_rt.pipeline.options import EncodeOptions

_OF_FILES, _OF_DATASETS = (
    tuple(one.name for one in fields(kind) if one.name not in JobConfig.__dataclass_fields__)
    for kind in (BulkConfig, DatasetConfig)
)


@dataclass(frozen=True, kw_only=True)
class Encode(Invocation):
    r"""Encode the texts of a file (lines, JSON lines, CSV, Parquet) with a bundle.

    Streams: memory does not grow with the file. The output appears when it is whole;
    finished parts wait in OUTPUT.partial, from which --resume goes on after a kill.

    A sparse encoder gives the words of each text with their weights, and a late-interaction model
    the vectors of its tokens: to JSON lines, in one process, without --resume.

    Examples:
        mirror-rt encode all-MiniLM-L6-v2 --input texts.txt --output vectors.npy
        mirror-rt encode bundle --input texts.txt --output vectors.npy
        mirror-rt encode bundle --input rows.csv --text-field body --id-field id --output v.parquet
        mirror-rt encode bundle --input huge.jsonl --output vectors.arrow --resume
        mirror-rt encode bundle --input huge.jsonl --output vectors.npy --devices all
        mirror-rt encode splade --input texts.txt --output words.jsonl --max-active-dims 256
        mirror-rt encode colbert --input queries.txt --output tokens.jsonl --task query
        mirror-rt encode pack --lang fr --input texts.txt --output vectors.npy
        mirror-rt encode bundle --input 'texts/*.parquet' --output vectors --shard 0/4 --resume
        mirror-rt encode bundle --input 'texts/*.parquet' --output vectors --merge-manifest
        mirror-rt encode bundle --input s3://texts --output s3://vectors --engine ray --address auto
        printf 'one text\nanother\n' | mirror-rt encode bundle --input - --output -
    """

    model: Annotated[str, Help("folder or hub name of a bundle, or a pack", "BUNDLE", word=True)]
    lang: Annotated[
        str | None,
        Help("of a pack: the language of the texts, unless it is the default; a pack without a "
             "bundle for it (pt for pt-BR will do) is refused, but for a fallback it declares",
             "TAG"),
    ] = None  # fmt: skip
    fallback: Annotated[
        str | None, Help("with --lang: encode with this language instead", "TAG")
    ] = None
    quiet: Quiet = False
    merge_manifest: Annotated[
        bool,
        Help("encode nothing: prove that the shards in --output are complete and of one model, and "
             "write the manifest"),
    ] = False  # fmt: skip
    file: Annotated[Given[BulkConfig], Group(leave_out=("model", "show_progress_bar"))]
    dataset: Annotated[Given[DatasetConfig], Group("datasets", only=_OF_DATASETS)]
    options: Annotated[Given[EncodeOptions], Group("vectors")]
    load: ModelOptions

    def kept(self) -> str:
        return "nothing was saved yet (work is saved after each window of texts)"

    def run(self) -> None:
        given = {**self.file.values(), **self.dataset.values()}
        where, output = str(given["input"]), given["output"]
        several = "://" in where or has_wildcards(where) or Path(where).is_dir()
        if several or self.merge_manifest or given.keys() & {"shard", "engine"}:
            _refuse(given, _OF_FILES, " is for one file: a dataset keeps its "
                    "columns (--columns), and is divided by --shard")  # fmt: skip
            said = self._encode_dataset()
        else:
            why = " is for datasets: let --input be a folder, a pattern or an address"
            _refuse(given, _OF_DATASETS, why)
            report = encode_file(
                self.file.make(model=self._bundle(), show_progress_bar=not self.quiet)
            )
            noun = "vectors" if report.tokens else "rows"  # of several vectors, or of words
            said = _summary(report, f"{report.rows} {noun} of {report.dimension} {report.dtype}")
        if not self.quiet:
            print(f"{output}: {said}", file=sys.stderr)

    def _encode_dataset(self) -> str:
        config = self.dataset.make(model=self._bundle(), show_progress_bar=not self.quiet)
        if self.merge_manifest:
            made = merge_manifest(config)
            return f"{made['blocks']} parts of one model, complete; {made['rows']} rows"
        report = encode_dataset(config)
        return _summary(report, f"{report.rows} vectors in {report.blocks} parts")

    def _bundle(self) -> str:
        """Return the bundle to encode with; of a pack that of --lang, or the default."""
        folder = Path(self.model)
        if self.lang is None and self.fallback is not None:
            raise ConfigError("--fallback goes with --lang TAG")
        if self.lang is None and not is_pack(folder):
            return self.model
        if self.lang == AUTO:
            raise ConfigError("--lang auto: a file is encoded in one language, name it")
        index = PackIndex.read(folder)
        router = Router(folder, index, fallback=self.fallback)
        return str(folder / index.bundles[router.route(self.lang)].path)


def _refuse(given: dict[str, object], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in given:
            raise ConfigError(Setting(name), why)


def _summary(report: BulkReport | DatasetReport, made: str) -> str:
    fresh, seconds = report.rows - report.resumed, max(report.seconds, 1e-9)
    work = f", {report.tokens / seconds:.0f} tokens/s, padding {report.padding:.1%}"
    text = (
        f"{made}; {fresh} in {report.seconds:.1f} s ({fresh / seconds:.0f} texts/s"
        f"{work if report.tokens else ''})"
    )
    if report.resumed:
        text += f", {report.resumed} by an earlier run"
    return f"{text}; {wrong}" if (wrong := str(report.counts)) else text
