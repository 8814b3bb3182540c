"""HTTP at its barest, for the two ends that are not measured: a model server that answers at once, and its clients."""

import asyncio
import json
import re
from collections.abc import Callable
from time import perf_counter
from typing import cast

CHUNKS = 200
"""Events of a streamed answer, `[DONE]` apart."""
PAUSE_S = 0.005
"""Between the events of the model `paced`."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_BODY_END = b"\r\n0\r\n\r\n"  # of a body in chunks


def _envelope(kind: str, choice: dict[str, object]) -> bytes:
    head = {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "bench"}
    return json.dumps(head | {"choices": [{"index": 0, "finish_reason": None} | choice]}).encode()


def _json_answer() -> bytes:
    message = {"role": "assistant", "content": 300 * "x"}
    body = _envelope("chat.completion", {"message": message, "finish_reason": "stop"})
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _events() -> list[bytes]:
    deltas: list[dict[str, object]] = [{"delta": {"content": f" word{number}"}} for number in range(CHUNKS - 1)]
    deltas.append({"delta": {}, "finish_reason": "stop"})
    blocks = [b"data: %b\n\n" % _envelope("chat.completion.chunk", delta) for delta in deltas]
    return [b"%x\r\n%b\r\n" % (len(block), block) for block in [*blocks, b"data: [DONE]\n\n"]]


class _ModelConnection(asyncio.Protocol):
    """Answers each request with the same bytes, streamed or not as its body asks."""

    _json = _json_answer()
    _events = _events()
    _head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._received = b""
        self._streaming: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not end or not length or len(body) < int(length[1]):
            return
        self._received = b""
        if b'"stream": true' in body:
            self._streaming = asyncio.create_task(self._stream(PAUSE_S if b'"paced"' in body else 0))
        else:
            self._transport.write(self._json)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - part of the protocol
        if self._streaming:
            self._streaming.cancel()

    async def _stream(self, pause_s: float) -> None:
        """One write an event; without a pause the other streams still get their turn in between."""
        self._transport.write(self._head)
        for chunk in self._events:
            self._transport.write(chunk)
            await asyncio.sleep(pause_s)
        self._transport.write(b"0\r\n\r\n")


async def serve_model(port: int) -> None:
    """Serves until it is ended."""
    server = await asyncio.get_running_loop().create_server(_ModelConnection, "127.0.0.1", port)
    await server.serve_forever()


class _Client(asyncio.Protocol):
    """Sends one request after the other on one connection, as soon as the answer before is there."""

    def __init__(self, next_request: Callable[[], bytes | None]) -> None:
        self._next_request = next_request
        self._received = b""
        self.answers = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        request = self._next_request()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not end or (len(body) < int(length[1]) if length else not body.endswith(_BODY_END)):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(f"was answered {self._received[:400]!r}")
            return
        self._received = b""
        self.answers += 1
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - part of the protocol
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, reason: str) -> None:
        self.closed.set_exception(RuntimeError(f"the load generator {reason}"))
        self._transport.close()


async def load(port: int, requests: list[Callable[[], bytes]], seconds: float) -> tuple[int, float]:
    """Answers to clients that send these, each on a connection of its own, and the seconds it took.

    That may be longer than asked for: what has begun is waited for.

    Raises:
        RuntimeError: an answer was not 200, or a connection was closed on us.
    """
    started = perf_counter()

    def until_over(request: Callable[[], bytes]) -> Callable[[], bytes | None]:
        return lambda: request() if perf_counter() - started < seconds else None

    clients = []
    for request in requests:
        client = _Client(until_over(request))
        await asyncio.get_running_loop().create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        clients.append(client)
    await asyncio.gather(*(client.closed for client in clients))
    took_s = perf_counter() - started
    if took_s < seconds:
        raise RuntimeError("the connections were closed before the time was over")
    return sum(client.answers for client in clients), took_s
