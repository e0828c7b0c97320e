"""Give a handler its request: the body, the model that it asks for, and the way to encode items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from mirror_rt.bundle.model_kinds import Gives
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import EncodedTexts
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES
from mirror_rt.server.exchange import Exchange
from mirror_rt.server.http.decoding import BodyDecoder
from mirror_rt.server.http.inputs import checked
from mirror_rt.server.http.schemas import Inputs, OfModel, VectorOptions, VectorsRequest
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.service import Items, ModelService

R = TypeVar("R", bound=OfModel | VectorsRequest)


class Call:
    """A request as its handler sees it; its body is dropped once the answer is known."""

    service: ModelService  # the model that it asks for, set by `read` and `find`

    def __init__(self, registry: Registry, exchange: Exchange, body: bytes = b"") -> None:
        self.registry, self.exchange, self.body = registry, exchange, body
        self.config = registry.config

    @property
    def name(self) -> str | None:
        """The name of the model in the path, if the path has one."""
        name: str | None = self.exchange.scope["path_params"].get("name")
        return name

    @property
    def seconds(self) -> float:
        """The seconds that the request still has; Problem 408 if there are none."""
        return self.exchange.timeout(self.config.timeout)

    async def read(self, decode: BodyDecoder[R], gives: Gives = "vectors") -> R:
        """Decode the body, and find the model that it asks for, as `find` does."""
        request = await decode(self.body, self.config)
        await self.find(request.model, request.lang, gives)
        return request

    async def find(self, model: str | None, lang: str | None, gives: Gives = "vectors") -> None:
        """Find a model, and keep it until the answer is sent; `gives` is as in `Catalog.find`."""
        self.service = await self.registry.service(self.exchange, model, lang, gives)

    def items(self, inputs: Inputs | list[str], field: str) -> Items:
        """Check the inputs in a field of the request, and count them for the log."""
        items = checked(inputs, field, self.config.max_items, self.service.facts.max_length)
        self.exchange.texts = len(items)
        return items

    async def encode(
        self, items: Items | list[Any], prepare: Callable[[list[Any]], list[Any]] | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:  # fmt: skip
        """Encode checked items as `ModelService.encode` does; count their tokens for the log."""
        exchange = self.exchange
        encoded = await self.service.encode(items, self.seconds, exchange.times, prepare, **options)
        exchange.tokens = sum(encoded.token_counts.tolist())
        return encoded

    def options(self, request: VectorOptions) -> EncodeKeywords:
        """Return the options of `Encoder.encode` that a request gives."""
        name = request.prompt_name
        if name is None and request.prompt is None and request.input_type is not None:
            names = QUERY_NAMES if "query" in request.input_type else DOCUMENT_NAMES
            name = self.service.encoder.prompts.first_of(names)
        return {
            "truncate_dim": request.dimensions or None,
            "normalize_embeddings": request.normalize,
            "on_too_long": request.on_too_long or self.config.on_too_long or "error",
            "prompt_name": name,
            "prompt": request.prompt,
        }

    def usage(self) -> dict[str, int | None]:
        """Return the numbers of tokens, as OpenAI's clients read them."""
        return dict.fromkeys(("prompt_tokens", "total_tokens"), self.exchange.tokens)
