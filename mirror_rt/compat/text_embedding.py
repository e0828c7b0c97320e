"""Offer the interface of fastembed over an `Encoder`, and over a `Reranker`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.adapters.lazy import LazyEncoder, LazyReranker
from mirror_rt.bundle.declarations import WEIGHTS
from mirror_rt.bundle.known_models import KnownModel, known_models
from mirror_rt.compat.arguments import pairs_with_blanks, refuse, with_blanks
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.inference.providers import without_cards
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import Texts, check_stream
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.reranking.reranker import Reranker
from mirror_rt.tokens.windows import WINDOW_TEXTS

Vector = npt.NDArray[np.float32]
Provider = str | tuple[str, dict[str, Any]]
_REFUSED = {
    "mmap": "the weights of a bundle are always mapped",
}


class _OfFastembed:
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

    _kind: type[LazyEncoder | LazyReranker]

    def __init__(
        self,
        model_name: str = "all-MiniLM-L6-v2",
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
        encoders = cls._kind is LazyEncoder
        return [
            _describe(model)
            for model in known_models()
            if bool(model.dimension) == encoders and model.road != "export"
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


class TextEmbedding(_OfFastembed):
    """A bundle with the methods of `fastembed.TextEmbedding`, whose arguments it takes."""

    _kind = LazyEncoder

    @property
    def encoder(self) -> Encoder:
        """The encoder that does the work."""
        return cast(Encoder, self._lazy.load())  # it was loaded by name

    @property
    def embedding_size(self) -> int:
        """The length D of an embedding."""
        return self.encoder.dimension

    @classmethod
    def get_embedding_size(cls, model_name: str) -> int:
        """Return the length D of an embedding of a bundle, which is loaded for it if need be."""
        return cls(model_name).embedding_size

    def embed(
        self,
        documents: Texts,
        batch_size: int = 256,
        parallel: int | None = None,
        **kwargs: Any,
    ) -> Iterator[Vector]:
        """Encode a stream of texts in constant memory, to one float32 [D] each, in order.

        Args:
            documents: one string, or any iterable of strings.
            batch_size: as in `Encoder.encode`, texts of 64 tokens.
            parallel: not needed, because one process uses all processors and cards.
            **kwargs: further options of `Encoder.encode_iter`.

        Raises:
            InvalidTextError, ConfigError: as `Encoder.encode_iter`.
        """
        refuse_unknown("embed", kwargs, {**EncodeKeywords.__annotations__, "window": int})
        texts = [documents] if isinstance(documents, str) else documents
        window = kwargs.pop("window", WINDOW_TEXTS)
        check_stream(texts, window)
        pipeline = self.encoder.pipeline
        plan = pipeline.plan(batch_size=batch_size, **kwargs)
        for encoded in pipeline.encode_windows(with_blanks(texts, window), plan):
            # Yield copies, so that a vector that is kept does not keep its whole window.
            yield from (row.copy() for row in encoded.embeddings)

    def query_embed(self, query: Texts, **kwargs: Any) -> Iterator[Vector]:
        """Encode queries like `embed`, with the model's prompt for queries if it has one."""
        yield from self._with_prompt(("query",), query, kwargs)

    def passage_embed(self, texts: Iterable[str], **kwargs: Any) -> Iterator[Vector]:
        """Encode documents like `embed`, with the model's prompt for documents if it has one."""
        yield from self._with_prompt(("document", "passage"), texts, kwargs)

    def token_count(self, texts: Texts, batch_size: int = 1024, **kwargs: Any) -> int:
        """Return the number of tokens of all texts, special tokens included."""
        return sum(map(len, self.encoder.tokenize(texts)))

    def _with_prompt(
        self, names: tuple[str, ...], texts: Texts, options: dict[str, Any]
    ) -> Iterator[Vector]:
        if "prompt" not in options and (name := self.encoder.prompts.first_of(names)):
            options = {"prompt_name": name, **options}
        return self.embed(texts, **options)


class TextCrossEncoder(_OfFastembed):
    """A bundle of a cross-encoder with the methods of fastembed's `TextCrossEncoder`."""

    _kind = LazyReranker

    @property
    def reranker(self) -> Reranker:
        """The cross-encoder that does the work."""
        return cast(Reranker, self._lazy.load())

    def rerank(
        self, query: str, documents: Iterable[str], batch_size: int = 64, **kwargs: Any
    ) -> Iterator[float]:
        """Yield a score for each document, in their order, as `rerank_pairs` does."""
        pairs = ((query, document) for document in documents)
        yield from self.rerank_pairs(pairs, batch_size, **kwargs)

    def rerank_pairs(
        self, pairs: Iterable[tuple[str, str]], batch_size: int = 64,
        parallel: int | None = None, **kwargs: Any,
    ) -> Iterator[float]:  # fmt: skip
        """Yield the output of the model, a logit, for each pair of a query and a document.

        `parallel` is not needed; `**kwargs` are further options of `Reranker.predict`.

        Raises:
            InvalidTextError, ConfigError: as `Reranker.predict`.
        """
        windows, plan = pairs_with_blanks(self.reranker.pipeline, pairs, batch_size, kwargs)
        for encoded in self.reranker.pipeline.encode_windows(windows, plan):
            yield from encoded.embeddings[:, 0].tolist()


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
