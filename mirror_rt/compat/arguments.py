"""Take the input of callers of other libraries: arguments, blank texts, devices, tensors."""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from mirror_rt.errors import ConfigError, require
from mirror_rt.inference.load_options import LoadKeywords
from mirror_rt.inference.providers import without_cards
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.reranking.options import PredictKeywords, PredictOptions
from mirror_rt.reranking.reranker import PairPipeline
from mirror_rt.tokens.pairs import Pair, as_pair
from mirror_rt.tokens.windows import WINDOW_TEXTS, TextWindow, text_windows

logger = logging.getLogger("mirror_rt")
_DEVICE = re.compile(r"cuda(?::(\d+))?")

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound=Pipeline)


class Device(str):
    """The name of a device, such as `"cuda:0"`, which is equal to the `torch.device` of it."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, str(other))

    @property
    def type(self) -> str:
        """The kind of device: `"cpu"` or `"cuda"`."""
        return self.partition(":")[0]


def device_options(device: object) -> LoadKeywords:
    """Return the options of `Encoder.load` for a device of torch: `cpu`, `cuda`, `cuda:1`."""
    if device is None:
        return {}
    name = str(device)  # a torch.device, too
    if name == "cpu":
        return {"providers": without_cards()}
    if match := _DEVICE.fullmatch(name):
        return {"providers": "cuda", "devices": [int(match[1] or 0)]}
    raise ConfigError(field="device", expected="'cpu', 'cuda' or 'cuda:N'", value=device)


def refuse(owner: str, hints: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first argument of a call that has a value and no meaning here.

    `hints` maps the name of such an argument of `owner` to the advice for its users. None,
    False and empty values count as not given.
    """
    for name, hint in hints.items():
        if given.get(name):
            raise ConfigError(f"{owner} does not take {name}={given[name]!r} here: {hint}")


def renamed(*positional: str, **names: str | None) -> Callable[[F], F]:
    """Return a decorator that takes keywords by their old names, too; the new name goes first.

    A keyword without a new name is dropped with a warning; the new name `keywords.key` is that of a
    key of the argument `keywords`. `positional` are the keywords that further positional arguments
    were, behind `self` and one more.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if positional and len(args) > 2:
                options = dict(zip(positional, args[2:], strict=False)) | options
                args = args[:2]
            for old in names.keys() & options.keys():
                value, new = options.pop(old), names[old]
                if new is None:
                    logger.warning("%s: the argument %s has no effect", function.__qualname__, old)
                    continue
                new, _, key = new.partition(".")
                logger.warning(
                    "The %s `%s` argument %s deprecated, use `%s`", function.__qualname__, old,
                    "is" if key else "was renamed and is now", new,
                )  # fmt: skip
                if key:
                    options[new] = {**(options.get(new) or {}), key: value}
                options.setdefault(new, value)
            return function(*args, **options)

        return cast(F, call)

    return decorate


def typed_as(function: F) -> Callable[[Callable[..., Any]], F]:
    """Return a decorator that gives a function the type of another one, overloads included."""
    return lambda other: cast(F, other)


def limited(pipeline: P, options: dict[str, Any]) -> P:
    """Return the pipeline of a call, whose `processing_kwargs` may ask for fewer tokens."""
    if not (asked := options.pop("processing_kwargs", None)):
        return pipeline
    expected = {"text": {"max_length": 256, "truncation": True}}
    most = asked["text"].get("max_length") if isinstance(asked.get("text"), dict) else None
    if not isinstance(most, int) or asked not in (
        {"text": {"max_length": most}}, {"text": {"max_length": most, "truncation": True}},
    ):  # fmt: skip
        raise ConfigError(field="processing_kwargs", expected=f"like {expected}", value=asked)
    pipeline, tokenizer = copy.copy(pipeline), copy.deepcopy(pipeline.tokenizer)
    tokenizer.limit(min(most, tokenizer.max_length))
    pipeline.tokenizer = tokenizer
    return pipeline


def with_blanks(texts: Iterable[Any], size: int = WINDOW_TEXTS) -> Iterator[TextWindow]:
    """Cut texts into windows where a blank string is a text like others, as in the originals."""
    for window in text_windows(texts, size):
        refused = {i: reason for i, reason in window.invalid.items() if not _blank(window.texts[i])}
        yield window._replace(invalid=refused)


def pairs_with_blanks(
    pipeline: PairPipeline,
    pairs: Iterable[Any],
    batch_size: int,
    given: Mapping[str, Any],
    prompt: str | None = None,
) -> tuple[Iterator[TextWindow], EncodePlan]:
    """Cut pairs into windows like `with_blanks`, and check the options of `Reranker.predict`."""
    refuse_unknown("a cross-encoder", given, PredictKeywords.__annotations__)
    options = PredictOptions(**{"prompt": prompt, **given, "batch_size": batch_size})
    plan = pipeline.plan(**options.of_pipeline())

    def checked() -> Iterator[TextWindow]:
        items = (as_pair(item, options.truncation) for item in pairs)
        for window in text_windows(items, invalid={}):
            filled = map(_filled, window.texts)
            yield window._replace(invalid=pipeline.tokenizer.find_invalid(list(filled)))

    return checked(), plan


def _filled(pair: Any) -> Any:
    """Return a pair with letters in place of blank texts; anything else as it is."""
    if not isinstance(pair, Pair):
        return pair
    query = "a" if _blank(pair.query) else pair.query
    return pair._replace(query=query, document="a" if _blank(pair.document) else pair.document)


def _blank(text: object) -> bool:
    return isinstance(text, str) and not text.strip()


def arrays_or_tensors(function: F) -> F:
    """Let a function of arrays take tensors as well: given one, it returns arrays as tensors."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = filter(None, map(_device_of, (*args, *options.values())))
        device = next(given, None)
        arrays = {name: as_array(value) for name, value in options.items()}
        result = function(*map(as_array, args), **arrays)
        if device is None or not isinstance(result, np.ndarray):
            return result
        return as_tensor(result).to(device)

    return cast(F, call)


def _device_of(values: Any) -> Any:
    """Return the device of a tensor, or of a list of tensors; None for anything else."""
    torch = sys.modules.get("torch")  # without it there are no tensors
    first = values[0] if isinstance(values, list) and values else values
    return first.device if torch is not None and isinstance(first, torch.Tensor) else None


def as_array(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as an array; anything else as it is."""
    if _device_of(values) is None:
        return values
    if isinstance(values, list):
        return np.stack([as_array(value) for value in values])
    values = values.detach().cpu()
    values = values if values.layout is sys.modules["torch"].strided else values.to_dense()
    small = values.is_floating_point() and values.element_size() < 4  # NumPy lacks bfloat16
    return (values.float() if small else values).numpy()


def as_tensor(values: Any) -> Any:
    """Return arrays as tensors; lists and dicts of arrays keep their form."""
    if isinstance(values, list):
        return [as_tensor(value) for value in values]
    if isinstance(values, dict):
        return {name: as_tensor(value) for name, value in values.items()}
    torch = require("torch", extra="train", purpose="a result as a tensor")
    return torch.from_numpy(np.ascontiguousarray(values))
