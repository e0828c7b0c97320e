"""Do the work of both clients, which differ in how they wait: see `ClientBase`."""

from __future__ import annotations

import logging
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from mirror_rt.client.attempts import (
    API_KEY_VARIABLE,
    Attempts,
    Failure,
    Reply,
    Settings,
    checked_key,
)
from mirror_rt.client.request import EncodeRequest, InputType, RemoteOptions
from mirror_rt.errors import ClosedError, ConfigError, require
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("mirror_rt")

# By default, the server closes a connection that was idle for 75 seconds.
_KEEP_ALIVE, _CONNECTIONS = 60.0, 100
# A host that does not accept connections is tried again sooner than one that is slow to answer.
_CONNECT_SECONDS = 5.0


class ClientBase(ABC):
    """The base of both clients; `Client` describes the arguments.

    All of their work is in coroutines, and whatever waits is in `_request`, `_sleep` and
    `_embed_all`. Those of `AsyncClient` wait for the event loop. Those of `Client` block, so that a
    coroutine over them ends without ever being suspended, and needs no event loop.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        model: str | None = None,
        lang: str | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        batch_size: int = 256,
        concurrency: int = 4,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        httpx = require("httpx2", extra="client", purpose="a client of mirror-rt serve")
        self._settings = Settings(
            url, model, lang, timeout, retries, batch_size, concurrency, verify
        )
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"url {url!r} cannot be used: {error}") from None
        self._key = checked_key(os.environ.get(API_KEY_VARIABLE) if api_key is None else api_key)
        self._closed = False
        self._said_truncated = False
        self._infos: dict[tuple[str | None, str | None], dict[str, Any]] = {}

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name in ("model", "lang")
                 if (value := getattr(self._settings, name)) is not None]  # fmt: skip
        return f"{type(self).__name__}({', '.join([repr(self._settings.url), *given])})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the client itself: libraries copy objects, but connections should be shared."""
        return self

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Pickle the client as its settings, without the API key."""
        return partial(type(self), **self._settings.arguments()), ()

    @abstractmethod
    async def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send one HTTP request over the client's connections."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Wait before the next attempt."""

    @abstractmethod
    async def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
        """Return the vectors of each piece, sending only a few pieces at the same time."""

    async def _encode(
        self,
        inputs: Texts,
        options: RemoteOptions,
        input_type: InputType | None = None,
    ) -> Embeddings:
        self._check_open()
        request = EncodeRequest.make(inputs, options, self._settings, input_type)
        if len(request.texts) == 1:
            return request.result([await self._embed(request, range(1))])
        info = await self._info(request.model, request.lang)
        if not request.texts:
            return request.nothing(info["dimension"])
        pieces = request.pieces(min(self._settings.batch_size, info["max_client_batch_size"]))
        return request.result(await self._embed_all(request, pieces))

    async def _embed(self, request: EncodeRequest, piece: range) -> Vectors:
        body = request.body(piece)
        reply = await self._exchange("POST", "v1/embeddings", body, first=piece.start)
        return request.vectors(piece, reply)

    async def _info(self, model: str | None, lang: str | None) -> dict[str, Any]:
        """Return the answer of /info about a model; the server is asked only once."""
        if (model, lang) not in self._infos:
            asked = {"model": model, "lang": lang}
            query = urlencode({name: value for name, value in asked.items() if value is not None})
            reply = await self._exchange("GET", f"info?{query}" if query else "info")
            self._infos[model, lang] = self._description(reply)
        return self._infos[model, lang]

    async def _models(self) -> list[str]:
        """Return the names in an answer of /v1/models; ServerError if it is something else."""
        reply = await self._exchange("GET", "v1/models")
        try:
            return [str(model["id"]) for model in reply.json()["data"]]
        except (LookupError, TypeError):
            raise reply.strange(f"/v1/models of {self._settings.url} lists no models") from None

    async def _exchange(
        self, method: str, path: str, body: bytes = b"", *, first: int = 0
    ) -> Reply:
        """Send a request, again and again if need be, and return the answer to it."""
        attempts = Attempts(self._settings, first)
        while True:
            outcome = await self._attempt(method, path, body, attempts)
            pause = attempts.pause(outcome)
            if isinstance(outcome, Reply) and pause is None:
                return outcome
            await self._sleep(pause or 0.0)

    async def _attempt(
        self, method: str, path: str, body: bytes, attempts: Attempts
    ) -> Reply | Failure:
        import httpx2

        self._check_open()
        left = attempts.left
        options = {
            "content": body,
            "headers": {"x-request-timeout": f"{left:.3f}"},
            "timeout": httpx2.Timeout(left, connect=min(left, _CONNECT_SECONDS)),
        }
        try:
            return self._reply(await self._request(method, path, **options))
        except httpx2.RequestError as error:
            # After a read or write timeout no time is left, after a connect timeout there may be.
            late = isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout)
            return Failure(str(error) or type(error).__name__, out_of_time=late)
        except RuntimeError:
            self._check_open()  # another thread or task has closed the client meanwhile
            raise

    def _http_options(self) -> dict[str, Any]:
        """Return the arguments for httpx2's clients."""
        import httpx2

        headers = {"content-type": "application/json", "user-agent": "mirror-rt"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        limits = httpx2.Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE,
        )
        return {
            "base_url": self._settings.url,
            "headers": headers,
            # Without TLS, skip reading the system's certificate authorities, which takes long.
            "verify": self._settings.url.startswith("https:") and self._settings.verify,
            "limits": limits,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} is closed: make another")

    def _reply(self, response: httpx2.Response) -> Reply:
        cut = response.headers.get("x-truncated-items")
        if cut is not None and not self._said_truncated:
            self._said_truncated = True
            said = "%s texts are longer than the model takes and were cut there (said once)"
            logger.warning(said, cut)
        return Reply(response.status_code, response.headers, response.content)

    def _description(self, reply: Reply) -> dict[str, Any]:
        """Decode an answer of /info; ServerError if it is something else."""
        info = reply.json()
        numbers = ("dimension", "max_client_batch_size")
        if not isinstance(info, dict) or not all(isinstance(info.get(n), int) for n in numbers):
            said = " and ".join(numbers)
            raise reply.strange(f"/info of {self._settings.url} does not say {said}")
        return info
