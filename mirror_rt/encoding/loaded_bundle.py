"""The parts of every loaded bundle: its origin, the engine that runs it, and its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.file_records import verifying
from mirror_rt.bundle.manifest import BUNDLES, Variant
from mirror_rt.bundle.model_kinds import DENSE, ModelKind
from mirror_rt.bundle.ready_models import ready_files
from mirror_rt.errors import BundleIntegrityError, ConfigError, MirrorError, Setting
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.devices import device_name
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.pipeline import Pipeline


class LoadedBundle:
    """A bundle together with its engine, which can be closed and pickled."""

    _kinds: ClassVar[tuple[ModelKind, ...]] = (DENSE,)
    pipeline: Pipeline
    _model: BundleModel

    def __init__(self, description: ModelDescription, options: LoadOptions) -> None:
        settings = replace(description.tokenizer, content=None)  # which nobody needs any more
        self.description = replace(description, tokenizer=settings)
        self.folder = description.folder
        self.manifest = description.bundle
        self.options = options

    @classmethod
    def _load(cls, path_or_name: str | Path, keywords: LoadKeywords) -> Self:
        """Load a bundle, and compare the files of a ready model meanwhile; errors as `load`."""
        folder, options = cls._find(path_or_name, keywords, hashed=False)
        files = ready_files(path_or_name, folder) if options.verify else {}
        try:
            with verifying(folder, files):
                return cls._load_whole(folder, options)
        except BundleIntegrityError:
            if not files:
                raise
        return cls._load_whole(*cls._find(path_or_name, keywords))  # which fetches it again

    @classmethod
    def _find(
        cls, path_or_name: str | Path, keywords: LoadKeywords, *, hashed: bool = True
    ) -> tuple[Path, LoadOptions]:
        """Return the folder of a bundle, and the options to load it with.

        A ready model that is not `hashed` here is compared while it is loaded.
        """
        from mirror_rt.bundle.pack_index import (
            refuse_pack,  # imported here: it takes a tenth of the time of importing mirror_rt
        )

        refuse_pack(Path(path_or_name))
        refuse_unknown(f"{cls.__name__}.load", keywords, LoadKeywords.__annotations__)
        options = LoadOptions(**keywords)
        try:
            folder = replace(options, verify=options.verify and hashed).find(path_or_name)
        except MirrorError as error:
            # Its message says all; six more entries of the traceback would hide it from a beginner.
            raise error.with_traceback(None) from error.__cause__
        refuse_pack(folder)
        return folder, options

    @classmethod
    def _load_whole(cls, folder: Path, options: LoadOptions) -> Self:
        """Load the bundle of a folder, all of it in the state of one moment; errors as `load`."""
        return load_unchanged(
            folder, lambda: cls(cls._describe(folder, options), options), cls.close
        )

    @classmethod
    def _describe(cls, folder: Path, options: LoadOptions) -> ModelDescription:
        """Describe a bundle of a kind that is loaded."""
        return options.describe(folder, formats=tuple(kind.format for kind in cls._kinds))

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, the first preferred; `["native"]` for the engine."""
        return self._model.runner.providers

    @property
    def provider_reason(self) -> str:
        """Why these providers run the bundle, and why others do not, in words."""
        return self._model.runner.why

    @property
    def variant(self) -> Variant:
        """The variant of the bundle that was chosen, with the path of its graph."""
        return self._model.variant

    @property
    def load_options(self) -> LoadKeywords:
        """Keyword arguments that load this bundle again: `type(this).load(this.folder, **these)`.

        They name no revision, because the folder is a local one even if it came from a hub.
        """
        return replace(self.options, revision=None, offline=False).keywords()

    @property
    def devices(self) -> list[str]:
        """The devices that the model runs on: `["cpu"]`, or `["cuda:0", "cuda:1"]` and so on."""
        return [device_name(device) for device in self._model.runner.devices]

    def warmup(self, *, lengths: Sequence[int] = (16, 128, 512), batch_size: int = 32) -> None:
        """Run the model once for each length, alone and in a full batch, on every device.

        In its first runs a session allocates memory and selects kernels, so they are slow: a
        service should warm up before it reports that it is ready. The native engine has no kernels
        to select, so it runs texts alone: full batches would take seconds of a processor.

        Args:
            lengths: lengths of the texts in tokens; those above `max_length` count as `max_length`.
            batch_size: as in `encode`; a full batch fills the token budget that it stands for.
        """
        longest = self.pipeline.pad_to or self.pipeline.tokenizer.max_length
        full = 0 if self.providers == ["native"] else 64 * batch_size
        shapes = [
            (rows, length)
            for length in sorted({min(length, longest) for length in lengths})
            for rows in sorted({1, max(1, full // length)})
        ]
        self._model.warmup(shapes, pad_id=self.pipeline.tokenizer.pad_id)

    def close(self) -> None:
        """Free the model once no run is in flight; encoding raises ClosedError from then on."""
        self._model.close()
        if self.pipeline.cache is not None:
            self.pipeline.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Pickle the folder and the options: unpickling loads the bundle from the folder again."""
        load = type(self).load  # type: ignore[attr-defined]  # each has its own
        return functools.partial(load, self.folder.absolute(), **self.load_options), ()


def open_model(described: ModelDescription, options: LoadOptions) -> BundleModel:
    """Open the model of a bundle, or of the files that others published."""
    manifest = described.bundle
    if manifest.format in BUNDLES or manifest.is_static or manifest.is_checkpoint:
        if options.pooling != "auto" and not manifest.is_checkpoint:
            raise ConfigError(
                Setting("pooling", options.pooling),
                f": {described.folder} is a bundle, its pooling is in the graph",
            )
        return BundleModel(described, options)
    from mirror_rt.inference.plain_model import PlainModel

    return PlainModel(described, options)
