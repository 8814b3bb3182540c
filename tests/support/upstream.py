"""A stub model server with an OpenAI-compatible API that counts its calls and misbehaves on request."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.support.answers import Answer, answer, error_answer, user_texts
from tests.support.process import LOCALHOST
from tests.support.waiting import until

_FLUSH_S = 0.05
"""How long sent bytes get to arrive before a reset, which may overtake them."""

_SHUTDOWN_S = 0.01
"""How long running calls get at the end; aiohttp takes 0 for no limit."""


@dataclass(eq=False)
class Call:
    """One POST as it arrived: times are monotonic seconds, `ended` is None while it runs.

    `marker` is the text of the first user message; `sent` is the body the caller was given, as far as it got;
    `aborted` says that the caller left before the end.
    """

    number: int
    path: str
    body: bytes
    headers: Mapping[str, str]
    marker: str
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    aborted: bool = False
    sent: bytearray = field(default_factory=bytearray)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        """The request body, parsed."""
        return json.loads(self.body)


class StubUpstream:
    """`async with StubUpstream() as up:` serves at `up.url`; from code without a loop, `StubUpstream.threaded()`.

    What a call gets is decided by the next entry of `up.upcoming`, else `up.mode`, else the request's `model`:

    | mode | answer |
    |---|---|
    | `ok`, any other word | the last user text, streamed word by word |
    | `slow:<s>` | after a delay; a stream also pauses between words |
    | `gate`, `gate_mid` | waits for `up.release()` before the status line, or after the first piece |
    | `hang`, `hang_mid` | silence before the status line, or after the first piece |
    | `status:<n>` | that status with an error envelope; 429 asks to retry after 7 s, 401 contains `SECRET` |
    | `reset_before`, `reset_mid` | connection reset before a byte, or after the first piece |
    | `truncated` | a clean end after the first piece: no finish reason, no `[DONE]` |
    | `malformed` | broken JSON |
    | `tools` | two tool calls |
    | `big:<n>` | n bytes of content |
    | `weird` | valid bytes nobody would write again the same way |
    | `no-such...` | 404 `model_not_found` |

    Ids are `chatcmpl-<number of the call>`: an id seen twice is a replay.
    """

    def __init__(self, mode: str | None = None) -> None:
        self.mode = mode
        self.upcoming: deque[str] = deque()
        self.calls: list[Call] = []
        self.aborted = 0
        self.running = 0
        self.max_overlap = 0
        self.port = 0
        self._running_of: Counter[str] = Counter()
        self._max_overlap_of: Counter[str] = Counter()
        self._closing = False

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://{LOCALHOST}:{self.port}/v1"

    @property
    def count(self) -> int:
        """How many calls arrived, whatever became of them."""
        return len(self.calls)

    def calls_of(self, marker: str) -> list[Call]:
        """The calls of the conversation that opened with `marker`."""
        return [call for call in self.calls if call.marker == marker]

    def overlap(self, marker: str) -> int:
        """How many calls of that conversation ran at once, at most."""
        return self._max_overlap_of[marker]

    def release(self, marker: str | None = None) -> int:
        """Let the calls held by a gate go on (only those of `marker` if given); returns how many were waiting."""
        held = [call for call in self.calls if call.ended is None and marker in (None, call.marker)]
        for call in held:
            self._loop.call_soon_threadsafe(call.gate.set)
        return len(held)

    async def until(self, condition: Callable[[Self], bool], *, timeout_s: float = 5.0) -> None:
        """Wait for something about this stub, such as `lambda up: up.running == 2`."""
        await until(lambda: condition(self), timeout_s=timeout_s, what="the expected state of the upstream")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._post)
        # Cancelling the handler is how a caller that leaves is noticed at once, also in silence.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOCALHOST, 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        await self._runner.cleanup()

    @classmethod
    @contextmanager
    def threaded(cls, mode: str | None = None) -> Iterator[Self]:
        """The same stub in a thread with its own loop; attributes and `release` may be used from outside."""
        ready: Future[tuple[Self, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            async with cls(mode) as up:
                over = asyncio.Event()
                ready.set_result((up, asyncio.get_running_loop(), over))
                await over.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        up, loop, over = ready.result(timeout=10)
        try:
            yield up
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join()

    async def _models(self, request: web.Request) -> web.Response:
        model = {"object": "model", "created": 1_700_000_000, "owned_by": "stub"}
        models = [model | {"id": name} for name in ("ok", "tools")]
        return web.json_response({"object": "list", "data": models})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            content = json.loads(body)
            marker = (user_texts(content) or [""])[0]
        except (ValueError, AttributeError, TypeError):
            content, marker = None, ""
        call = Call(self.count + 1, request.path, body, request.headers.copy(), marker)
        self.calls.append(call)
        mode = self.upcoming.popleft() if self.upcoming else self.mode or str((content or {}).get("model") or "ok")
        if content is None or request.path != "/v1/chat/completions":
            plan = error_answer(400 if content is None else 404, "The stub cannot read this request", None)
        else:
            plan = answer(mode, content, call.number)
        self.running += 1
        self._running_of[marker] += 1
        self.max_overlap = max(self.max_overlap, self.running)
        self._max_overlap_of[marker] = max(self._max_overlap_of[marker], self._running_of[marker])
        try:
            return await self._send(request, call, plan)
        except (asyncio.CancelledError, ConnectionError):
            if call.ended is None and not self._closing:
                call.aborted = True
                self.aborted += 1
            raise
        finally:
            self.running -= 1
            self._running_of[marker] -= 1
            call.ended = call.ended or time.monotonic()

    async def _send(self, request: web.Request, call: Call, plan: Answer) -> web.StreamResponse:
        response = web.StreamResponse(status=plan.status, headers=plan.headers)
        response.headers["Content-Type"] = plan.content_type
        if len(plan.pieces) == 1:
            response.content_length = len(plan.pieces[0])
        await self._hold(plan.before, request, call)
        await asyncio.sleep(plan.delay_s)
        await response.prepare(request)
        for index, piece in enumerate(plan.pieces):
            if index == 1 and plan.after_first == "end":
                break
            if index == 1:
                await self._hold(plan.after_first, request, call)
            if index:
                await asyncio.sleep(plan.pause_s)
            call.sent += piece
            if index == len(plan.pieces) - 1:
                call.ended = time.monotonic()  # whoever leaves with the last byte has aborted nothing
            await response.write(piece)
        await response.write_eof()
        return response

    async def _hold(self, what: str, request: web.Request, call: Call) -> None:
        """Do what the mode asks for at this point: wait for the test, wait for ever, or break the connection."""
        if what == "gate":
            await call.gate.wait()
        elif what == "hang":
            await asyncio.Event().wait()
        elif what == "reset" and request.transport is not None:
            await asyncio.sleep(_FLUSH_S)
            call.ended = time.monotonic()
            linger = struct.pack("ii", 1, 0)  # close with RST instead of FIN
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            request.transport.abort()
            raise ConnectionResetError("the stub broke the connection")
