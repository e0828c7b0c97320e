"""Offer the arguments that the classes of fastembed share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from mirror_rt.adapters.lazy import LazyModel
from mirror_rt.bundle.declarations import WEIGHTS
from mirror_rt.bundle.known_models import KnownModel, known_models
from mirror_rt.compat.arguments import refuse, with_blanks
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.inference.providers import without_cards
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import Texts, check_stream
from mirror_rt.tokens.windows import WINDOW_TEXTS, TextWindow

Provider = str | tuple[str, dict[str, Any]]
_REFUSED = {
    "mmap": "the weights of a bundle are always mapped",
}


class FastembedModel:
    """A bundle with the arguments that the classes of fastembed share.

    Args:
        model_name: folder or name of a bundle.
        cache_dir: folder for downloads; None for `$MIRROR_RT_CACHE`, and the
            hub's cache for the files of a hub.
        threads: of one operator; None for all processors.
        providers: execution providers of onnxruntime, instead of `cuda` and `device_ids`: each a
            name, or a pair of a name and options.
        cuda: True for the cards, False for the CPU, `"auto"` for a card where there is one.
        device_ids: numbers of the cards to use.
        lazy_load: load the model with the first call.
        **kwargs: `local_files_only`, `specific_model_path`, and fields of `LoadOptions`;
            `enable_cpu_mem_arena` is taken and has no effect on the memory, which is bounded, and
            `max_length` has none, as in the original: texts are cut where the model ends.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such bundle (see `Encoder.load`).
    """

    _kind: ClassVar[type[LazyModel[Any]]]
    _lists: ClassVar[Literal["encoders", "cross-encoders", "none"]] = "none"

    def __init__(
        self,
        model_name: str,
        cache_dir: str | None = None,
        threads: int | None = None,
        providers: Sequence[Provider] | None = None,
        cuda: bool | Literal["auto"] = "auto",
        device_ids: list[int] | None = None,
        lazy_load: bool = False,
        **kwargs: Any,
    ) -> None:
        refuse(type(self).__name__, _REFUSED, kwargs)
        ignored = {*_REFUSED, "enable_cpu_mem_arena", "max_length"}
        options = {name: value for name, value in kwargs.items() if name not in ignored}
        path = options.pop("specific_model_path", None) or model_name
        offline = options.pop("local_files_only", False)
        options = {"threads": threads, "offline": offline, **options}
        refuse_unknown(type(self).__name__, options, LoadKeywords.__annotations__)
        self.model_name, self.threads = model_name, threads
        options |= _providers(providers, cuda, device_ids)
        if cache_dir is not None:
            path = LoadOptions(**options).find(path, Path(cache_dir))
        self._lazy = self._kind(path, options)
        if not lazy_load:
            self._lazy.load()

    @classmethod
    def list_supported_models(cls) -> list[dict[str, Any]]:
        """List the models that load by their name alone; every folder loads by its path.

        Each has the keys that fastembed gives; `mirror-rt models` prints the same table.
        """
        kinds = {True: "encoders", False: "cross-encoders"}
        return [
            _describe(model)
            for model in known_models()
            if kinds[bool(model.dimension)] == cls._lists and model.road != "export"
        ]

    @classmethod
    def add_custom_model(cls, *args: Any, **kwargs: Any) -> None:
        """Refuse: a model becomes a bundle by `mirror-rt export`, and is then loaded by its path.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "models are not added to a list: run `mirror-rt export MODEL --out BUNDLE`, and give "
            "BUNDLE as model_name"
        )


def windows_of(texts: Texts, options: dict[str, Any]) -> Iterator[TextWindow]:
    """Cut one text or a stream of them into windows of the size that the options may name."""
    several = [texts] if isinstance(texts, str) else texts
    window = options.pop("window", WINDOW_TEXTS)
    check_stream(several, window)
    return with_blanks(several, window)


def _describe(model: KnownModel) -> dict[str, Any]:
    about = f"{model.languages}, {model.max_length} input tokens"
    return {
        "model": model.name,
        "sources": {"hf": model.hub_name, "url": None},
        "model_file": WEIGHTS,
        "description": "; ".join(filter(None, (about, model.note))),
        "license": model.license.lower(),
        "size_in_GB": model.gigabytes,
        "additional_files": [],
        "dim": model.dimension,
        "tasks": {},
    }


def _providers(
    providers: Sequence[Provider] | None, cuda: object, device_ids: list[int] | None
) -> dict[str, Any]:
    cuda = getattr(cuda, "value", cuda)  # a Device of fastembed
    if providers is not None:
        if cuda is True or device_ids:
            raise ConfigError("give providers, or cuda and device_ids, not both")
        names = [one if isinstance(one, str) else one[0] for one in providers]
        settings = [{} if isinstance(one, str) else dict(one[1]) for one in providers]
        if any(settings[1:]):
            raise ConfigError(f"only the first of the providers may have options, got {providers}")
        first = settings[0] if settings else {}
        card = first.pop("device_id", None)
        devices = {} if card is None else {"devices": [int(card)]}
        return {"providers": names, "provider_options": first, **devices}
    none = without_cards()
    name = {True: "cuda", False: none, "auto": "auto", "cuda": "cuda", "cpu": none}.get(cuda)
    if name is None:
        raise ConfigError(field="cuda", expected="True, False or 'auto'", value=cuda)
    return {"providers": name, **({"devices": device_ids} if device_ids else {})}
