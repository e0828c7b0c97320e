"""Define `AsyncClient`, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, Unpack

from mirror_rt.client.attempts import Attempts, Failure, Reply
from mirror_rt.client.base import ClientBase
from mirror_rt.client.request import EncodeRequest, InputType, RemoteOptions
from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    import httpx2


class AsyncClient(ClientBase):
    """A `Client` for any number of tasks of one event loop; arguments and errors are the same.

    Cancelling a task cancels its requests; the server then skips texts that it has not begun.
    """

    _http: httpx2.AsyncClient | None = None

    async def encode(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Encode texts like `Client.encode`."""
        return await self._encode(inputs, options, None)

    async def encode_query(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Encode queries like `Client.encode_query`."""
        return await self._encode(inputs, options, "query")

    async def encode_document(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Encode documents like `Client.encode_document`."""
        return await self._encode(inputs, options, "document")

    async def info(self) -> dict[str, Any]:
        """Return what the server's /info says about the model; the server is asked only once."""
        return await self._info(self._settings.model, self._settings.lang)

    async def models(self) -> list[str]:
        """Return the names of the server's models."""
        return self._names(await self._exchange("GET", "v1/models"))

    async def close(self) -> None:
        """Close the connections; any later call raises ClosedError."""
        self._closed = True
        if self._http is not None:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _encode(
        self, inputs: str | Iterable[str], options: RemoteOptions, input_type: InputType | None
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

    async def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
        """Return the vectors of each piece, sending only a few pieces at the same time."""
        room = asyncio.Semaphore(self._settings.concurrency)
        tasks: list[asyncio.Task[Vectors]] = []

        async def embed(piece: range) -> Vectors:
            try:
                return await self._embed(request, piece)
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                for piece in pieces:
                    await room.acquire()
                    tasks.append(group.create_task(embed(piece)))
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _embed(self, request: EncodeRequest, piece: range) -> Vectors:
        body = request.body(piece)
        reply = await self._exchange("POST", "v1/embeddings", body, first=piece.start)
        return request.vectors(piece, reply)

    async def _info(self, model: str | None, lang: str | None) -> dict[str, Any]:
        return self._infos.get((model, lang)) or self._describe(
            model, lang, await self._exchange("GET", self._info_path(model, lang))
        )

    async def _exchange(
        self, method: str, path: str, body: bytes = b"", *, first: int = 0
    ) -> Reply:
        attempts = Attempts(self._settings, first)
        while True:
            outcome = await self._send(method, path, body, attempts)
            pause = attempts.pause(outcome)
            if isinstance(outcome, Reply) and pause is None:
                return outcome
            await asyncio.sleep(pause or 0.0)

    async def _send(
        self, method: str, path: str, body: bytes, attempts: Attempts
    ) -> Reply | Failure:
        import httpx2

        self._check_open()
        if self._http is None:
            self._http = httpx2.AsyncClient(**self._http_options())
        try:
            options = self._request_options(attempts)
            response = await self._http.request(method, path, content=body, **options)
        except httpx2.RequestError as error:
            return self._failure(error)
        except RuntimeError:
            self._check_open()  # another task has closed the client meanwhile
            raise
        return self._reply(response)
