"""`Client`: for programs without asyncio, and for adapters."""

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

__all__ = ["Client"]


class Client(ClientBase):
    """A client of `mirror-rt serve`, with the `encode` of an `Encoder`, for any number of threads.

    An adapter takes it wherever it takes an encoder. It keeps its connections until `close()`, or
    the end of its `with`. A forked process gets connections of its own. It is pickled without its
    API key, which is then taken from the environment.

    Args:
        url: of the server, with the path under which it is mounted, if any.
        api_key: one of the server's keys; None for the environment variable MIRROR_RT_API_KEY.
        model: to ask for; None for the server's default.
        lang: of the texts, where the server has a pack of languages.
        timeout: seconds for a request with all its retries. The server is told what is left of
            them, and does no work that would come too late. A long list is many requests.
        retries: how often a request is sent again that finds no server, or one that is not ready
            (502, 503, 504). One that finds it too busy (429) is sent again as long as there is
            time. The client waits twice as long each time, and at least as long as the server
            says (`Retry-After`). With 0, nothing is sent again.
        batch_size: most texts of a request; a longer list is sent in pieces.
        concurrency: how many pieces of a list are sent at a time.
        verify: of an HTTPS server's certificate: True for the system's authorities, False for
            none at all, or a context with others.

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
            **options: `normalize_embeddings`, `truncate_dim`, `precision`, `ranges`,
                `prompt_name`, `prompt` as of `Encoder.encode`; `on_too_long`, too, and None there
                for what the server was told; `model` and `lang` instead of the client's own.

        Returns:
            [n, D] in the order of `inputs`, [D] for a single string; float32 unless `precision`
            says otherwise.

        Raises:
            InvalidTextError: naming each text that cannot be encoded by its position in `inputs`.
            ConfigError: an option has an unusable value, or the server has no such model.
            OverloadedError: the server is too busy, and stays so.
            DeadlineError: `timeout` is over.
            ServerError: the server cannot be reached, refuses the client or fails.
            ClosedError: the client is closed.
        """
        return self._encode(inputs, options, None)

    def encode_query(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """`encode` with the model's prompt `query`, if it has one and no other is asked for."""
        return self._encode(inputs, options, "query")

    def encode_document(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """`encode` with the model's prompt `document` or `passage`, like `encode_query`."""
        return self._encode(inputs, options, "document")

    async def aencode(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """`encode` in another thread, so that the event loop goes on; see `AsyncClient`."""
        return await _in_thread(partial(self.encode, inputs, **options))

    async def aencode_query(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """`aencode` with the prompt of `encode_query`."""
        return await _in_thread(partial(self.encode_query, inputs, **options))

    async def aencode_document(
        self, inputs: str | Iterable[str], **options: Unpack[RemoteOptions]
    ) -> Embeddings:
        """`aencode` with the prompt of `encode_document`."""
        return await _in_thread(partial(self.encode_document, inputs, **options))

    @property
    def dimension(self) -> int:
        """Length D of an embedding; the server is asked once."""
        dimension: int = self.info()["dimension"]
        return dimension

    def info(self) -> dict[str, Any]:
        """What the server's /info says of the model, asked once."""
        return self._info(self._settings.model, self._settings.lang)

    def models(self) -> list[str]:
        """The names of the models that the server has."""
        return self._names(self._exchange("GET", "v1/models"))

    def close(self) -> None:
        """Close the connections; what is used afterwards raises ClosedError."""
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
        if not request.texts:
            return request.nothing(self._info(request.model, request.lang)["dimension"])
        most = self._settings.batch_size
        if len(request.texts) > 1:
            info = self._info(request.model, request.lang)
            most = min(most, info["max_client_batch_size"])
        pieces = request.pieces(most)
        if len(pieces) == 1:
            return request.result([self._embed(request, pieces[0])])
        return request.result(self._embed_all(request, pieces))

    def _embed_all(self, request: EncodeRequest, pieces: list[range]) -> list[Vectors]:
        """The vectors of each piece, of which a few are under way at a time."""
        pool = ThreadPoolExecutor(min(self._settings.concurrency, len(pieces)))
        try:
            return list(pool.map(partial(self._embed, request), pieces))
        finally:
            # Of a call that failed, what was sent already is answered to nobody.
            pool.shutdown(wait=False, cancel_futures=True)

    def _embed(self, request: EncodeRequest, piece: range) -> Vectors:
        body = request.body(piece)
        reply = self._exchange("POST", "v1/embeddings", body, first=piece.start)
        return request.vectors(piece, reply)

    def _info(self, model: str | None, lang: str | None) -> dict[str, Any]:
        known = self._infos.get((model, lang))
        if known is not None:
            return known
        return self._describe(model, lang, self._exchange("GET", self._info_path(model, lang)))

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
            self._check_open()  # closed by another thread meanwhile
            raise

    def _connections(self) -> httpx2.Client:
        """The pool of this process."""
        import httpx2

        with _making:
            self._check_open()
            if self._http is None or self._process != os.getpid():
                self._http = httpx2.Client(**self._http_options())
                self._process = os.getpid()
            return self._http


_making = threading.Lock()


async def _in_thread(call: Callable[[], Embeddings]) -> Embeddings:
    import asyncio  # 30 ms that a synchronous program does without

    return await asyncio.to_thread(call)
