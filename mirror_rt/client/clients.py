"""Define `Client`, for programs without asyncio and for adapters, and `AsyncClient`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from mirror_rt.client.base import ClientBase
from mirror_rt.client.request import EncodeRequest, RemoteOptions
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
_making = threading.Lock()


class Client(ClientBase):
    """A client of `mirror-rt serve`, with the `encode` of an `Encoder`, for any number of threads.

    Adapters accept it in place of an encoder. It keeps its connections until `close()`, or until
    the end of its `with` block. A forked process gets connections of its own. It is pickled without
    its API key, which is then taken from the environment.

    Args:
        url: URL of the server, with the path under which it is mounted, if any.
        api_key: one of the server's keys; None for the environment variable MIRROR_RT_API_KEY.
        model: name of the model; None for the server's default.
        lang: language of the texts, if the server has a pack of languages.
        timeout: seconds for a request with all its retries. The server is told how many are left,
            and does no work that would be late. A long list is sent as many requests.
        retries: how often to send a request again that no server answers or that meets one that is
            not ready (502, 503, 504). A request to a server that is too busy (429) is sent again as
            long as there is time. The client waits twice as long each time, and at least as long
            as the server says (`Retry-After`). With 0, nothing is sent again.
        batch_size: most texts of a request; a longer list is sent in pieces.
        concurrency: number of pieces of a list that are sent at the same time.
        verify: how to verify an HTTPS server's certificate: True for the system's authorities,
            False for no verification, or a context with other authorities.

    Raises:
        ConfigError: an argument has an unusable value.
        MissingDependencyError: httpx2 is not installed.
    """

    _http: httpx2.Client | None = None
    _process = 0

    def encode(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Encode texts, as `Encoder.encode` of the server's model does.

        Args:
            inputs: one string, or any iterable of strings.
            **options: `normalize_embeddings`, `truncate_dim`, `precision`, `ranges`, `prompt_name`
                and `prompt` as in `Encoder.encode`; `on_too_long` likewise, or None for the
                server's own setting; `model` and `lang` instead of the client's own.

        Returns:
            [n, D] in the order of `inputs`, [D] for a single string; float32 unless `precision`
            says otherwise.

        Raises:
            InvalidTextError: texts cannot be encoded; it names them by their position in `inputs`.
            ConfigError: an option has an unusable value, or the server has no such model.
            OverloadedError: the server is too busy, and stays so.
            DeadlineError: `timeout` has passed.
            ServerError: the server cannot be reached, refuses the client or fails.
            ClosedError: the client is closed.
        """
        return _result(self._encode(inputs, options))

    def encode_query(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Call `encode` with the model's prompt `query`, if it has one and `options` names none."""
        return _result(self._encode(inputs, options, "query"))

    def encode_document(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Call `encode` with the model's prompt `document` or `passage`, like `encode_query`."""
        return _result(self._encode(inputs, options, "document"))

    async def aencode(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Call `encode` in another thread, so that the event loop goes on; see `AsyncClient`."""
        return await asyncio.to_thread(self.encode, inputs, **options)

    async def aencode_query(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Call `aencode` with the prompt of `encode_query`."""
        return await asyncio.to_thread(self.encode_query, inputs, **options)

    async def aencode_document(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Call `aencode` with the prompt of `encode_document`."""
        return await asyncio.to_thread(self.encode_document, inputs, **options)

    @property
    def dimension(self) -> int:
        """Return the length D of an embedding; the server is asked only once."""
        dimension: int = self.info()["dimension"]
        return dimension

    def info(self) -> dict[str, Any]:
        """Return the answer of the server's /info about the model; it is asked only once."""
        return _result(self._info(self._settings.model, self._settings.lang))

    def models(self) -> list[str]:
        """Return the names of the server's models."""
        return _result(self._models())

    def close(self) -> None:
        """Close the connections; any later call raises ClosedError."""
        self._closed = True
        if self._http is not None and self._process == os.getpid():
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self._connections().request(method, path, **options)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
        if len(pieces) == 1:
            return [await self._embed(request, pieces[0])]
        pool = ThreadPoolExecutor(min(self._settings.concurrency, len(pieces)))
        try:
            return list(pool.map(lambda piece: _result(self._embed(request, piece)), pieces))
        finally:
            # After an error, nobody waits for the answers to the pieces that were sent already.
            pool.shutdown(wait=False, cancel_futures=True)

    def _connections(self) -> httpx2.Client:
        """Return the connection pool of this process."""
        import httpx2

        with _making:
            self._check_open()
            if self._http is None or self._process != os.getpid():
                self._http = httpx2.Client(**self._http_options())
                self._process = os.getpid()
            return self._http


class AsyncClient(ClientBase):
    """A `Client` for any number of tasks of one event loop; arguments and errors are the same.

    Cancelling a task cancels its requests; the server then skips texts that it has not begun.
    """

    _http: httpx2.AsyncClient | None = None

    async def encode(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Encode texts like `Client.encode`."""
        return await self._encode(inputs, options)

    async def encode_query(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Encode queries like `Client.encode_query`."""
        return await self._encode(inputs, options, "query")

    async def encode_document(self, inputs: Texts, **options: Unpack[RemoteOptions]) -> Embeddings:
        """Encode documents like `Client.encode_document`."""
        return await self._encode(inputs, options, "document")

    async def info(self) -> dict[str, Any]:
        """Return the answer of the server's /info about the model; it is asked only once."""
        return await self._info(self._settings.model, self._settings.lang)

    async def models(self) -> list[str]:
        """Return the names of the server's models."""
        return await self._models()

    async def close(self) -> None:
        """Close the connections; any later call raises ClosedError."""
        self._closed = True
        if self._http is not None:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        import httpx2

        if self._http is None:
            self._http = httpx2.AsyncClient(**self._http_options())
        return await self._http.request(method, path, **options)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
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


def _result(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that blocks instead of waiting for an event loop; return its result."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a coroutine of the blocking client waits for an event loop")
