"""Hold a model of an adapter, or how to load it, and the options of its calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakValueDictionary

from mirror_rt.bundle.manifest import Layout
from mirror_rt.encoding.loaded_bundle import LoadedBundle
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords
from mirror_rt.keywords import refuse_unknown

M = TypeVar("M")

# Adapters of one model share what it loads to: libraries copy, clone and unpickle adapters freely.
_loaded: WeakValueDictionary[str, Any] = WeakValueDictionary()
_loading = threading.Lock()


class LazyModel(Generic[M]):
    """A model that is loaded on first use, with fixed options for its calls.

    It is pickled without its model, which is loaded again after unpickling.
    """

    _kind: ClassVar[type[Any]]  # what loads it
    _method: ClassVar[str]  # by which such a model is known
    _calls: ClassVar[str]  # name of the options of its calls
    _keywords: ClassVar[type]  # those options

    def __init__(
        self,
        model: str | Path | M,
        model_kwargs: Mapping[str, Any] | None = None,
        call_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.model_kwargs = dict(model_kwargs or {})
        self._call_kwargs = dict(call_kwargs or {})
        refuse_unknown("model_kwargs", self.model_kwargs, LoadKeywords.__annotations__)
        refuse_unknown(self._calls, self._call_kwargs, self._keywords.__annotations__)
        self._loaded: M | None = None
        if not isinstance(model, str | Path):
            if not hasattr(model, self._method):
                raise ConfigError(
                    field="model",
                    expected=f"the path or hub name of a bundle, or a loaded {self._kind.__name__}",
                    value=model,
                )
            if self.model_kwargs:
                raise ConfigError("model_kwargs are for a path or name, and model is loaded")
            self._loaded = model

    def load(self) -> M:
        """Return the model, loading it on first use, so that an error comes now."""
        if self._loaded is None:
            self._loaded = _load(self._kind, str(self.model), self.model_kwargs)
        return self._loaded

    async def aload(self) -> M:
        """Call `load` without blocking the event loop."""
        if self._loaded is None:
            import asyncio  # here: it takes 30 ms, which synchronous programs save

            await asyncio.to_thread(self.load)
        return self.load()

    @property
    def name(self) -> str:
        """Return the path or name of the model, for people."""
        if isinstance(self.model, str | Path):
            return str(self.model)
        return str(getattr(self.model, "folder", repr(self.model)))

    def config(self) -> dict[str, Any]:
        """Return the arguments that make an equal object, with the model by name."""
        if isinstance(self.model, LoadedBundle):
            model_kwargs = dict(self.model.load_options)
        elif isinstance(self.model, str | Path):
            model_kwargs = self.model_kwargs
        else:
            raise ConfigError(
                f"{self.model!r} cannot be stored: give the path or hub name of a bundle instead"
            )
        return {
            "model": self.name,
            "model_kwargs": dict(model_kwargs),
            self._calls: dict(self._call_kwargs),
        }

    def __reduce__(self) -> tuple[type[LazyModel[M]], tuple[Any, ...]]:
        return type(self), (self.model, self.model_kwargs, self._call_kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyModel[M]:
        return self


def _load(kind: type[Any], model: str, options: dict[str, Any]) -> Any:
    """Load a bundle, or return that of another adapter if its files have not changed."""
    manifest = Path(model, Layout.manifest)
    local = manifest.is_file()
    which = (str(manifest.absolute()), manifest.stat().st_mtime_ns) if local else model
    key = json.dumps([kind.__name__, which, options], sort_keys=True, default=repr)
    with _loading:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _loaded[key] = kind.load(model, **options)
    return loaded
