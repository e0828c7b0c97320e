"""Export many models in one run as a pack of bundles: resumable, several at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mirror_export.config import ExportConfig
from mirror_export.pack.sources import fingerprint, name_models, weight_bytes
from mirror_export.pack.staging import Staging, link_identical, partial_folder, staging
from mirror_export.pack.worker import ModelResult, run_workers
from mirror_rt import Manifest
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.cpus import available_cpus, cgroup_folders, lines_of
from mirror_rt.errors import ConfigError, MirrorError
from mirror_rt.inference.session import import_onnxruntime
from mirror_train.model.model_folder import resolve_model

__all__ = ["ModelResult", "PackReport", "export_pack"]

logger = logging.getLogger("mirror_export")

# The memory assumed for one export: its libraries and a large tokenizer, and the weights three
# times: in the model, in the file being written and in the session that checks it. A float32 export
# takes less: 1.34 GB for 470 MB of weights (peak_bytes of mirror-rt export --json, 2026-11-21).
_TIMES_WEIGHTS, _BASE = 3, 700_000_000
# Names of the limit, the usage and (in memory.stat) its reclaimable part, in cgroup v2 and v1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of a run.

    Attributes:
        models: every model of the run, in the order given.
        index: index of the pack; None if no model could be exported and nothing was written.
        saved_bytes: disk space saved by storing identical files once.
    """

    models: tuple[ModelResult, ...]
    index: PackIndex | None
    saved_bytes: int

    @property
    def failed(self) -> list[ModelResult]:
        """The models that have no bundle."""
        return [model for model in self.models if model.status == "failed"]


def export_pack(
    models: Sequence[str],
    config: ExportConfig,
    *,
    jobs: int | Literal["auto"] = 1,
    resume: bool = False,
    fallback: str | None = None,
    on_result: Callable[[ModelResult], None] = lambda result: None,
) -> PackReport:
    """Export every model as a bundle of one pack; a failing model does not stop the others.

    Args:
        models: tuned folders, other encoders' folders, or hub names.
        config: options for all of them; `out` is the pack, `model` is ignored.
        jobs: number of processes at a time, each with its share of the processors; `"auto"` for as
            many as fit into memory.
        resume: keep the complete bundles of an earlier run, interrupted or not, that were made from
            the same files with the same options. Bundles of models that are not given stay, too.
        fallback: name in the pack of the bundle for languages that it lacks; None to let them be
            refused, or with `resume` for that of the earlier pack.
        on_result: called with every result as soon as it is known.

    Returns:
        The results of all models. The pack holds the bundles that succeeded.

    Raises:
        ConfigError: `fallback` is none of the models, a model is given twice, two would have one
            name, `out` is inside a model's folder or holds it, or `jobs` is not a number of
            processes.
        OutputExistsError: the pack exists, and neither `resume` nor `config.overwrite` is set.
        OSError: the disk is full.
        KeyboardInterrupt: with a message that says how to go on.
    """
    import_onnxruntime("checking an exported bundle")
    if jobs != "auto" and jobs < 1:
        raise ConfigError(field="jobs", expected="at least 1 or 'auto'", value=jobs)
    named = name_models(models)
    if fallback is not None and fallback not in named:
        raise ConfigError(f"fallback {fallback!r} is none of the models: {', '.join(named)}")
    for model in named.values():
        _check_apart(config.out, Path(model))
    with staging(config.out, resume=resume, overwrite=config.overwrite) as place:
        try:
            results = _export_all(named, config, place, jobs, on_result)
        except KeyboardInterrupt:
            made = f"{place.folder} holds {', '.join(place.bundles)}: continue with --resume"
            left = made if place.bundles else "no bundle was finished"
            raise KeyboardInterrupt(f"interrupted; {left}") from None
        if not place.bundles:
            return PackReport(tuple(results), None, 0)
        folders = [place.folder / name for name in place.bundles]
        saved = link_identical(folders)
        fallback = fallback or place.fallback
        kept = fallback if fallback in place.bundles else None
        if kept != fallback:
            logger.warning("the pack has no fallback: the export of %s failed", fallback)
        index = place.finish([result.name for result in results], kept)
    return PackReport(tuple(results), index, saved)


def _check_apart(out: Path, model: Path) -> None:
    if not model.exists():
        return  # a hub name, or an error that concerns this model only
    pack, source = out.resolve(), model.resolve()
    if pack.is_relative_to(source):
        raise ConfigError(f"--out {out} is inside the model {model}: choose a folder outside it")
    if source.is_relative_to(pack) or source.is_relative_to(partial_folder(pack)):
        raise ConfigError(f"--out {out} would replace the model {model}: choose another folder")


def _export_all(
    named: dict[str, str],
    config: ExportConfig,
    place: Staging,
    jobs: int | Literal["auto"],
    on_result: Callable[[ModelResult], None],
) -> list[ModelResult]:
    """Make the bundles that do not exist yet; return the results in the order of `named`."""
    results: dict[str, ModelResult] = {}

    def add(result: ModelResult) -> None:
        if result.status == "failed":
            place.drop(result.name)
        results[result.name] = result
        on_result(result)

    configs: dict[str, ExportConfig] = {}
    sources: dict[str, dict[str, Any]] = {}
    weights = []
    for name, model in named.items():
        one = dataclasses.replace(config, model=model, overwrite=False, out=place.folder / name)
        try:
            folder, _ = resolve_model(model, revision=config.revision, offline=config.offline)
            sources[name], size = fingerprint(folder, one), weight_bytes(folder)
        except (MirrorError, OSError) as error:
            add(ModelResult(name, model, "failed", error=" ".join(str(error).split())))
            continue
        if name in place.bundles and place.bundles[name].source == sources[name]:
            add(ModelResult(name, model, "kept", manifest=Manifest.read(one.out)))
            continue
        place.drop(name)
        configs[name] = one
        weights.append(size)
    with contextlib.closing(run_workers(configs, _jobs(jobs, weights))) as outcomes:
        for result in outcomes:
            if result.status == "exported":
                place.add(result.name, sources[result.name])
                manifest = Manifest.read(configs[result.name].out)
                result = dataclasses.replace(result, manifest=manifest)
            add(result)
    return [results[name] for name in named]


def _jobs(jobs: int | Literal["auto"], weights: list[int]) -> int:
    if jobs == "auto":
        return jobs_that_fit(weights)
    count = max(1, min(jobs, len(weights)))
    needed, free = expected_peak(sorted(weights)[-count:]), available_memory()
    if count > 1 and 0 < free < needed:
        logger.warning(
            "%d exports at a time may need %.1f GB of memory, and %.1f are free: --jobs auto "
            "takes as many as fit",
            count,
            needed / 1e9,
            free / 1e9,
        )
    return count


def expected_peak(weights: Sequence[int]) -> int:
    """Return the bytes that exports running together may need, given the bytes of their weights."""
    return sum(_TIMES_WEIGHTS * size + _BASE for size in weights)


def jobs_that_fit(weights: Sequence[int], available: int | None = None) -> int:
    """Return how many of the exports may run at a time: at least 1, at most one per processor.

    `weights` are the bytes of each model's; `available` is None for all that this process may use.
    """
    memory = available_memory() if available is None else available
    largest = sorted(weights, reverse=True)[: available_cpus()]
    fitting = [n for n in range(1, len(largest) + 1) if expected_peak(largest[:n]) <= memory]
    return max(fitting, default=1)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still use, by the machine and by its cgroups' limits.

    It is 0 if the system does not tell (it is not Linux); `root` has /proc and the cgroups.
    """
    lines = lines_of(root / "proc/meminfo")
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if not lines:
        return 0
    for folder in cgroup_folders(root, "memory"):
        free += [*_left(folder, *_V2), *_left(folder, *_V1)]
    return min(free, default=0)


def _left(folder: Path, limit_name: str, usage_name: str, reclaimable: str) -> list[int]:
    limit, usage = ("".join(lines_of(folder / name)) for name in (limit_name, usage_name))
    if not (limit.isdecimal() and usage.isdecimal()):
        return []  # "max", or the other version's names; and the root has no limit
    stat = dict(line.split() for line in lines_of(folder / "memory.stat"))
    return [max(0, int(limit) - int(usage) + int(stat.get(reclaimable, 0)))]
