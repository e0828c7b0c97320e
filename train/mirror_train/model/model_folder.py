"""Find the folder of a model by its name: a path, a ready model, or a name on a hub."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.declarations import INDEX, WEIGHTS
from mirror_rt.bundle.hub import download, is_hub_name
from mirror_rt.bundle.ready_models import local_folder, ready_names
from mirror_rt.errors import ModelError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

# Files of a hub repository that torch does not need; often several times the size of those it does.
_OTHER_FRAMEWORKS = ("onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot", "*.tflite")
_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def resolve_model(
    name: str, *, revision: str | None = None, offline: bool = False
) -> tuple[Path, str | None]:
    """Return the folder and hub commit of a model that is given by path, ready or hub name."""
    if (found := local_folder(name, revision, offline=offline)) is not None:
        return found, None
    if not is_hub_name(name) and ("/" in name or "\\" in name or name.startswith(".")):
        raise ModelError(f"{name}: no such folder")
    try:
        return _download_model(name, revision, offline=offline)
    except ModelError as error:
        raise ModelError(
            f"there is no folder {name}, and of a hub: {error}; base models without a hub: "
            f"{ready_names()}"
        ) from error


def _download_model(name: str, revision: str | None, *, offline: bool) -> tuple[Path, str]:
    """Download a model from the hub; return its folder and commit.

    Many repositories hold the same weights twice, so pickled ones are only fetched where there are
    no others.
    """
    ignore: tuple[str, ...] = (*_OTHER_FRAMEWORKS, *_PICKLES)
    folder = download(name, revision=revision, offline=offline, error=ModelError, ignore=ignore)
    if not any((folder / weights).is_file() for weights in (WEIGHTS, INDEX)):
        # Asking for the same commit keeps the files consistent if a new one was pushed meanwhile.
        ignore, commit = _OTHER_FRAMEWORKS, folder.name
        folder = download(name, revision=commit, offline=offline, error=ModelError, ignore=ignore)
    return folder, folder.name
