"""From the name of a model to the folder that holds its files."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.hub import download, is_hub_name, refuse_revision
from mirror_rt.errors import ModelError
from mirror_train.model.default_model import default_model_folder, is_default_model

__all__ = ["SAFE_WEIGHTS", "resolve_model"]

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# What a hub repository may hold beside what torch needs, often several times its size.
_OTHER_FRAMEWORKS = ("onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot", "*.tflite")
_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def resolve_model(
    name: str, *, revision: str | None = None, offline: bool = False
) -> tuple[Path, str | None]:
    """Folder and hub commit of a model given by path, by hub name, or as the embedded default.

    Raises:
        ModelError: there is none.
        ConfigError: a revision was given with a path.
    """
    if Path(name).exists():
        refuse_revision(Path(name), revision)
        return Path(name), None
    if is_default_model(name) and revision is None:
        return default_model_folder(offline=offline), None
    if not is_hub_name(name) and ("/" in name or "\\" in name or name.startswith(".")):
        raise ModelError(f"{name}: no such folder")
    return _download_model(name, revision, offline=offline)


def _download_model(name: str, revision: str | None, *, offline: bool) -> tuple[Path, str]:
    """Snapshot and commit of a model on the hub, with pickled weights only where it has no other.

    Many repositories hold the same weights twice.
    """
    ignore = (*_OTHER_FRAMEWORKS, *_PICKLES)
    folder = download(name, revision=revision, offline=offline, error=ModelError, ignore=ignore)
    if not any((folder / weights).is_file() for weights in SAFE_WEIGHTS):
        # Of the same commit, whatever is pushed meanwhile.
        folder = download(
            name,
            revision=folder.name,
            offline=offline,
            error=ModelError,
            ignore=_OTHER_FRAMEWORKS,
        )
    return folder, folder.name
