"""Define `Client`, for programs without asyncio and for adapters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from mirror_rt.client.attempts import Attempts, Failure, Reply
from mirror_rt.client.base import ClientBase
from mirror_rt.client.request import EncodeRequest, InputType, RemoteOptions
from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    import httpx2


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

    def encode(self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]) -> Embeddings:
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
        return self._encode(inputs, options, None)

    def encode_query(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Call `encode` with the model's prompt `query`, if it has one and `options` names none."""
        return self._encode(inputs, options, "query")

    def encode_document(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Call `encode` with the model's prompt `document` or `passage`, like `encode_query`."""
        return self._encode(inputs, options, "document")

    async def aencode(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Call `encode` in another thread, so that the event loop goes on; see `AsyncClient`."""
        return await _in_thread(partial(self.encode, inputs, **options))

    async def aencode_query(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Call `aencode` with the prompt of `encode_query`."""
        return await _in_thread(partial(self.encode_query, inputs, **options))

    async def aencode_document(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """Call `aencode` with the prompt of `encode_document`."""
        return await _in_thread(partial(self.encode_document, inputs, **options))

    @property
    def dimension(self) -> int:
        """Return the length D of an embedding; the server is asked only once."""
        dimension: int = self.info()["dimension"]
        return dimension

    def info(self) -> dict[str, Any]:
        """Return what the server's /info says about the model; the server is asked only once."""
        return self._info(self._settings.model, self._settings.lang)

    def models(self) -> list[str]:
        """Return the names of the server's models."""
        return self._names(self._exchange("GET", "v1/models"))

    def close(self) -> None:
        """Close the connections; any later call raises ClosedError."""
        self._closed = True
        if self._http is not None and self._process == os.getpid():
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(
        self, inputs: str | Iterable[str], options: RemoteOptions, input_type: InputType | None
    ) -> Embeddings:
        self._check_open()
        request = EncodeRequest.make(inputs, options, self._settings, input_type)
        if len(request.texts) == 1:
            return request.result([self._embed(request, range(1))])
        info = self._info(request.model, request.lang)
        if not request.texts:
            return request.nothing(info["dimension"])
        pieces = request.pieces(min(self._settings.batch_size, info["max_client_batch_size"]))
        return request.result(self._embed_all(request, pieces))

    def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
        """Return the vectors of each piece, sending only a few pieces at the same time."""
        if len(pieces) == 1:
            return [self._embed(request, pieces[0])]
        pool = ThreadPoolExecutor(min(self._settings.concurrency, len(pieces)))
        try:
            return list(pool.map(partial(self._embed, request), pieces))
        finally:
            # After an error, nobody waits for the answers to the pieces that were sent already.
            pool.shutdown(wait=False, cancel_futures=True)

    def _embed(self, request: EncodeRequest, piece: range) -> Vectors:
        body = request.body(piece)
        reply = self._exchange("POST", "v1/embeddings", body, first=piece.start)
        return request.vectors(piece, reply)

    def _info(self, model: str | None, lang: str | None) -> dict[str, Any]:
        return self._infos.get((model, lang)) or self._describe(
            model, lang, self._exchange("GET", self._info_path(model, lang))
        )

    def _exchange(self, method: str, path: str, body: bytes = b"", *, first: int = 0) -> Reply:
        attempts = Attempts(self._settings, first)
        while True:
            outcome = self._send(method, path, body, attempts)
            pause = attempts.pause(outcome)
            if isinstance(outcome, Reply) and pause is None:
                return outcome
            time.sleep(pause or 0.0)

    def _send(self, method: str, path: str, body: bytes, attempts: Attempts) -> Reply | Failure:
        import httpx2

        http = self._connections()
        try:
            options = self._request_options(attempts)
            return self._reply(http.request(method, path, content=body, **options))
        except httpx2.RequestError as error:
            return self._failure(error)
        except RuntimeError:
            self._check_open()  # another thread has closed the client meanwhile
            raise

    def _connections(self) -> httpx2.Client:
        """Return the connection pool of this process."""
        import httpx2

        with _making:
            self._check_open()
            if self._http is None or self._process != os.getpid():
                self._http = httpx2.Client(**self._http_options())
                self._process = os.getpid()
            return self._http


_making = threading.Lock()


async def _in_thread(call: Callable[[], Embeddings]) -> Embeddings:
    import asyncio  # here: it takes 30 ms, which synchronous programs save

    return await asyncio.to_thread(call)
