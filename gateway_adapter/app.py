"""The aiohttp application and the process around it."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from time import monotonic
from typing import Any

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from coordinator import Coordinator, CoordinatorError
from gateway_adapter import chat_completions, context, conversations, health, metrics, models, openapi, runs, sessions
from gateway_adapter.disconnects import Disconnects
from gateway_adapter.errors import INTERNAL, NO_RETRY, ErrorAnswer, answer_of
from gateway_adapter.executors.base import Executor
from gateway_adapter.executors.echo import EchoExecutor
from gateway_adapter.executors.upstream import UpstreamExecutor
from gateway_adapter.metrics import CODE, METRICS, Metrics
from gateway_adapter.responses import handlers as responses
from gateway_adapter.settings import GatewaySettings
from gateway_adapter.workers import WORKERS, Workers

_log = structlog.get_logger(__name__)

_OPEN_TO_ALL = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})
_HEADER_BYTES = 16_384  # a line of a request's head; longer ones are refused before anything is looked at
_CLOSE_S = 2  # how long connections may take to close once their handlers are done

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(settings: GatewaySettings) -> web.Application:
    """The application: routes, errors, authentication; its coordinator and executor live as long as it runs."""
    app = web.Application(
        middlewares=[_measured, _errors, _authentication], client_max_size=settings.max_body_bytes + 1
    )
    app[context.SETTINGS] = settings
    app[health.DRAINING] = []
    app[METRICS] = Metrics()
    app.cleanup_ctx.append(_resources)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions.post),
            web.get("/v1/models", models.get),
            web.post("/v1/responses", responses.post),
            web.get("/v1/responses/{id:[^/]+}", responses.get),
            web.delete("/v1/responses/{id:[^/]+}", responses.delete),
            web.post("/v1/responses/{id:[^/]+}/cancel", responses.cancel),
            web.get("/v1/responses/{id:[^/]+}/input_items", responses.input_items),
            web.post("/v1/runs", runs.post),
            web.get("/v1/runs", runs.list_runs),
            web.get("/v1/runs/{id:[^/]+}", runs.get),
            web.get("/v1/runs/{id:[^/]+}/events", runs.events),
            web.post("/v1/runs/{id:[^/]+}/stop", runs.stop),
            web.post("/v1/conversations", conversations.create),
            web.get("/v1/conversations/{id:[^/]+}", conversations.get),
            web.post("/v1/conversations/{id:[^/]+}", conversations.update),
            web.delete("/v1/conversations/{id:[^/]+}", conversations.delete),
            web.get("/v1/conversations/{id:[^/]+}/items", conversations.list_items),
            web.post("/v1/conversations/{id:[^/]+}/items", conversations.add_items),
            web.get("/api/sessions", sessions.list_sessions),
            web.post("/api/sessions", sessions.create_session),
            # `{id}` alone would not match an id with braces
            web.get("/api/sessions/{id:[^/]+}", sessions.get_session),
            web.delete("/api/sessions/{id:[^/]+}", sessions.delete_session),
            web.get("/api/sessions/{id:[^/]+}/messages", sessions.get_messages),
            web.post("/api/sessions/{id:[^/]+}/reset", sessions.reset_session),
            web.post("/api/sessions/{id:[^/]+}/fork", sessions.fork_session),
            web.post("/api/sessions/{id:[^/]+}/cancel", sessions.cancel_session),
            web.get("/openapi.json", openapi.get),
            web.get("/metrics", metrics.get),
            web.get("/healthz", health.healthz),
            web.get("/readyz", health.readyz),
        ]
    )
    return app


async def _resources(app: web.Application) -> AsyncIterator[None]:
    settings = app[context.SETTINGS]
    async with (
        _executor(settings) as executor,
        Coordinator.open(settings.store, settings.coordinator) as coordinator,
        Disconnects() as disconnects,
    ):
        app[context.EXECUTOR] = executor
        app[context.COORDINATOR] = coordinator
        app[METRICS].running.set_function(lambda: coordinator.running)
        app[METRICS].draining.set_function(lambda: float(bool(app[health.DRAINING])))
        app[context.DISCONNECTS] = disconnects
        async with Workers(app, coordinator) as workers:
            app[WORKERS] = workers
            yield


def _executor(settings: GatewaySettings) -> Executor:
    if settings.upstream is None:
        return EchoExecutor()
    return UpstreamExecutor(
        settings.upstream, settings.upstream_api_key, settings.upstream_timeout_ms, settings.max_answer_bytes
    )


@web.middleware
async def _measured(request: web.Request, handler: Handler) -> web.StreamResponse:
    started = monotonic()
    response = await handler(request)
    request.app[METRICS].count(request, response, started)
    return response


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        answer = ErrorAnswer(error.status, "not_found" if error.status == 404 else "invalid_request", error.reason)
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _response(request, answer, {**NO_RETRY, **allow})
    except Exception as error:  # noqa: BLE001 - the last resort: nothing of it reaches the client
        answer = answer_of(error, keyed="Idempotency-Key" in request.headers) or INTERNAL
        if answer is INTERNAL:
            _log.exception("request failed", path=request.path)
        return _response(request, answer, {})


def _response(request: web.Request, answer: ErrorAnswer, headers: dict[str, str]) -> web.Response:
    request[CODE] = answer.code
    return web.Response(
        status=answer.status,
        body=answer.body,
        content_type="application/json",
        headers={**context.session_headers(request), **answer.headers, **headers},
    )


@web.middleware
async def _authentication(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path not in _OPEN_TO_ALL:
        values = request.headers.getall("Authorization", [])
        tenant = request.app[context.SETTINGS].keys.tenant_of(values[0] if len(values) == 1 else None)
        if tenant is None:
            refusal = ErrorAnswer(401, "invalid_api_key", "The API key is missing or wrong.", None, NO_RETRY)
            return _response(request, refusal, {"WWW-Authenticate": "Bearer"})
        request[context.TENANT] = tenant
    return await handler(request)


class _Connection(RequestHandler):
    """Answers also what aiohttp cannot parse in the form that clients of this API expect."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0 or status >= 500:
            return super().handle_error(request, status, exc, message)
        text = f"The request is not valid HTTP: {HTTPStatus(status).phrase}."
        answer = ErrorAnswer(status, "invalid_http", text)
        response = web.Response(status=status, body=answer.body, content_type="application/json", headers=NO_RETRY)
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Runs the application with connections that refuse in its own form."""

    def __init__(self, app: web.Application) -> None:
        super().__init__(
            app,
            access_log=None,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            shutdown_timeout=_CLOSE_S,
        )

    async def _make_server(self) -> web.Server:
        await super()._make_server()  # starts the application
        handler: Any = self.app._handle  # takes the requests that the factory beside it makes
        return _Server(handler, request_factory=self.app._make_request, **self._kwargs)


async def serve(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT, then lets running turns finish within the drain time.

    Raises:
        OSError: the address cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = make_app(settings)
    runner = Runner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
        _log.info("listening", url=f"http://{settings.host}:{settings.port}", replica=settings.coordinator.replica)
        await _warn_of_eviction(app[context.COORDINATOR])
        await stop.wait()
        stop.clear()
        await _drain(app, stop)
    finally:
        await runner.cleanup()


async def _drain(app: web.Application, hurry: asyncio.Event) -> None:
    """Starts nothing new, waits for what runs, and interrupts what still runs then. A second signal ends the wait."""
    coordinator, limit_ms = app[context.COORDINATOR], app[context.SETTINGS].drain_timeout_ms
    app[health.DRAINING].append(True)
    coordinator.drain()
    _log.info("draining", running=coordinator.running, limit_ms=limit_ms)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_ms / 1000):
            while coordinator.running and not hurry.is_set():
                await asyncio.sleep(0.05)
    coordinator.interrupt()


async def _warn_of_eviction(coordinator: Coordinator) -> None:
    with contextlib.suppress(CoordinatorError):
        policy = await coordinator.eviction_policy()
        if policy and policy != "noeviction":
            _log.warning("the store may evict keys it must not lose: set maxmemory-policy noeviction", policy=policy)
