"""Take every request in: check its key, answer it, log and count it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mirror_rt.server.admission.problems import (
    HUNG_UP,
    TOO_LONG,
    Problem,
    ProblemShape,
    inference_shape,
    malformed,
    openai_shape,
    problem_of,
    tei_shape,
    try_again,
)
from mirror_rt.server.exchange import Answer, Exchange, HungUp, until_hang_up
from mirror_rt.server.http.call import Call
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.monitoring.logs import where

logger = logging.getLogger("mirror_rt.server")

Handler = Callable[[Call], Awaitable[Answer]]

# Probes have no key; the documents and the page contain nothing that the source code does not.
_OPEN = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready", "/docs",
                   "/docs/scalar.js", "/openapi.json"})  # fmt: skip
# Headers that decide something, and that a request may therefore have only once: with two, a
# server that reads the first and a server that reads the last would disagree.
_SINGLE = frozenset({b"authorization", b"content-encoding", b"content-length", b"content-type",
                     b"inference-header-content-length", b"x-request-id",
                     b"x-request-timeout"})  # fmt: skip
# Paths of Infinity and vLLM without /v1, whose errors have the form of those under it.
_OF_OPENAI = frozenset({"/embeddings", "/models", "/score", "/classify"})
EXCHANGE = "mirror_rt.exchange"


def shape_of(path: str) -> ProblemShape:
    """Return the shape in which the clients of a path expect errors."""
    if path.startswith("/v2") and path not in ("/v2/rerank", "/v2/embed"):
        return inference_shape
    is_openai = path.startswith(("/v1/", "/v2/")) or path in _OF_OPENAI
    return openai_shape if is_openai else tei_shape


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Wrap the routes; of a request, only its route, status and counts are recorded.

    `posts` maps a path to the application that answers a POST there, which saves the search for a
    route.
    """

    app: ASGIApp
    registry: Registry
    posts: Mapping[str, ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its headers and key allow it, and record its outcome."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = scope[EXCHANGE] = Exchange(scope)
        name = exchange.request_id.encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name)]
            await send(message)

        tracing = self.registry.tracing
        span = tracing.begin(exchange) if tracing is not None else None
        self.registry.metrics.open.inc()
        try:
            refusal = self._refusal(scope, exchange)
            if refusal is None:
                app = self.posts.get(_path(scope)) if scope["method"] == "POST" else None
                await (app or self.app)(scope, receive, send_with_id)
            else:
                if (path := _path(scope)) in self.posts:
                    exchange.route = path
                await answer_problem(refusal, scope, send_with_id)
        except HungUp:
            exchange.status, exchange.reason = HUNG_UP, "hung_up"  # whatever had been sent
            self.registry.metrics.hang_ups.inc()
        finally:
            self.registry.metrics.open.dec()
            self._note(exchange)
            if tracing is not None and span is not None:
                tracing.end(span, exchange)

    def _refusal(self, scope: Scope, exchange: Exchange) -> Problem | None:
        """Return why a request may not pass, or None."""
        names = [name for name, _ in scope["headers"] if name in _SINGLE]
        if len(names) > len(set(names)):
            name = next(name for name in names if names.count(name) > 1).decode()
            return Problem(400, f"there is more than one {name} header", "malformed")
        keys, path = self.registry.keys, _path(scope)
        # The page is open for reading only: a POST to the same path asks for vectors.
        page = path == "/" and scope["method"] in ("GET", "HEAD")
        if not keys.required or path in _OPEN or page:
            return None
        key = exchange.headers.get(b"authorization", b"").decode("latin-1")
        return None if keys.accepts(key) else _UNAUTHORIZED

    def _note(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.began
        self.registry.requests.note(
            exchange.request_id, exchange.route, exchange.status or HUNG_UP, seconds,
            peer=exchange.scope.get("client"), reason=exchange.reason, model=exchange.model,
            texts=exchange.texts, tokens=exchange.tokens,
        )  # fmt: skip


_UNAUTHORIZED = Problem(401, "an API key is needed: Authorization: Bearer KEY", "invalid_api_key",
                        headers={"www-authenticate": "Bearer"}, close=True)  # fmt: skip
_STOPPING = replace(try_again("the server is stopping", "stopping"), close=True)


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A route as an ASGI application, which answers a request or describes its fault."""

    registry: Registry
    handler: Handler
    route: str  # its name in logs and metrics
    reads: bool = False  # whether a body is expected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = self.route
        registry, call = self.registry, Call(self.registry, exchange)
        with exchange.held:  # until the answer is sent
            try:
                with registry.bodies.hold() as grow:
                    if self.reads:
                        call.body = await exchange.body(receive, registry.config, grow)
                        async with until_hang_up(receive):
                            answer = await self.handler(call)
                    else:
                        answer = await self.handler(call)
            except HungUp:
                raise
            except asyncio.CancelledError:
                if not registry.stopping:
                    raise
                # The time to drain has passed.
                await answer_problem(_STOPPING, scope, send)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
                await answer_problem(self._problem(error, exchange, call.body), scope, send)
            else:
                if not isinstance(answer.body, bytes):
                    answer.held += len(call.body)  # it may have the texts, or be computed of them
                if not isinstance(answer.body, AsyncGenerator):
                    exchange.held.close()  # the model is free before the client has read anything
                call.body = b""
                await self._send(answer, exchange, receive, send)

    async def _send(self, answer: Answer, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send an answer; after a failure leave it without an end, which closes the connection."""
        try:
            await answer.send(receive, send, self.registry.unread)
        except HungUp:
            raise
        except asyncio.CancelledError:
            if not self.registry.stopping:
                raise
            exchange.status, exchange.reason = _STOPPING.status, _STOPPING.code
            logger.warning("%s: the answer was cut off: the time to drain has passed",
                           exchange.request_id)  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the status has been sent
            exchange.status, exchange.reason = 500, "cut_off"
            logger.error("%s: the answer was cut off: %s", exchange.request_id, where(error))

    def _problem(self, error: Exception, exchange: Exchange, body: bytes) -> Problem:
        if isinstance(error, msgspec.DecodeError):
            return malformed(error, body)
        problem = problem_of(error, exchange.max_length)
        if problem is None:
            logger.error("%s: unforeseen: %s", exchange.request_id, where(error))
            return Problem(500, "an error of the server's own; its log has more", "internal")
        if problem.status == 424:
            logger.error("%s: %s", exchange.request_id, where(error))
        return problem


async def answer_problem(problem: Problem, scope: Scope, send: Send) -> None:
    """Send the error object that the clients of this path understand."""
    shape = shape_of(_path(scope))
    if shape is openai_shape and problem.code == "too_long":
        problem = replace(problem, status=400, code=TOO_LONG)
    headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    if problem.close:
        headers.append((b"connection", b"close"))
    scope[EXCHANGE].reason = problem.code  # not its message, which may quote the request
    body = shape(problem)
    await Answer(body, problem.status, headers=headers).send_whole(body, send)


def _path(scope: Scope) -> str:
    """Return the path within this application, wherever it is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
