"""Find the folder of a model by its name: a path, a ready model, or a name on a hub."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.declarations import INDEX, WEIGHTS
from mirror_rt.bundle.hub import Repository, is_hub_name
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
    repository = Repository(name, revision, offline, ModelError)
    if (found := local_folder(repository)) is not None:
        return found, None
    if not is_hub_name(name) and ("/" in name or "\\" in name or name.startswith(".")):
        raise ModelError(f"{name}: no such folder")
    try:
        # Many repositories hold the same weights twice: pickled ones are fetched without others.
        folder = repository.download(ignore=(*_OTHER_FRAMEWORKS, *_PICKLES))
        if not any((folder / weights).is_file() for weights in (WEIGHTS, INDEX)):
            folder = repository.at(folder).download(ignore=_OTHER_FRAMEWORKS)
    except ModelError as error:
        raise ModelError(
            f"there is no folder {name}, and of a hub: {error}; base models without a hub: "
            f"{ready_names()}"
        ) from error
    return folder, folder.name
