"""Identical keyed requests at the same time: one turn, whose outcome is everybody's."""

import asyncio
import time

import pytest

from tests.adapter.gateway import hold, queued, said
from tests.support.tcp import TcpService
from tests.support.waiting import until

USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("first_stream", [False, True])
@pytest.mark.parametrize("joiner_stream", [False, True])
async def test_a_retry_joins_the_running_turn(start, upstream, first_stream, joiner_stream):
    """F3, F4: on any replica it waits for the running turn and gets the same answer in the form it asks for."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "hello you", key="k", stream=first_stream, body=USAGE)
    joining = [
        asyncio.create_task(gateway.chat("hello you", model="gate", key="k", stream=joiner_stream, body=USAGE))
        for gateway in gateways
    ]
    await asyncio.wait(joining, timeout=0.1)
    assert not any(task.done() for task in joining)
    upstream.release()
    first = await running
    joined = [await task for task in joining]
    assert [reply.status for reply in joined] == [200, 200]
    assert [said(reply) for reply in joined] == [said(first)] * 2
    assert [reply.session_id for reply in joined] == [first.session_id] * 2
    if first_stream == joiner_stream:
        assert [reply.body for reply in joined] == [first.body] * 2
    assert (first.replayed, [reply.replayed for reply in joined]) == (False, [True, True])
    assert upstream.count == 1


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_identical_requests_at_once_run_once(start, upstream, session_id):
    """F1, F3: 20 identical keyed requests over two replicas are one turn, whose end all are told at once; no 5xx."""
    gateways = [await start(poll_ms=8_000, vouch_ms=24_000) for _ in range(2)]  # looking again by itself is too late
    for number in range(5):
        asked = (gateways[i % 2].chat(f"race {number}", key=f"k{number}", session_id=session_id) for i in range(20))
        began = time.monotonic()
        replies = await asyncio.gather(*asked)
        assert time.monotonic() - began < 4
        assert [reply.status for reply in replies] == [200] * 20
        assert len({reply.body for reply in replies}) == 1
        assert sum(not reply.replayed for reply in replies) == 1
    assert upstream.count == 5


async def test_identical_requests_may_wait_side_by_side(gateway, upstream, store_server):
    """F6: a key is not taken while its request waits; the first that is granted takes it, the rest replay."""
    running = await hold(gateway, upstream, "hello", session_id="s")
    waiting = [asyncio.create_task(gateway.chat("next", session_id="s", key="k")) for _ in range(3)]
    await queued(gateway, "s", 3)
    assert store_server.cli("KEYS", "*:idempotency:*") == []
    upstream.release()
    await running
    replies = [await task for task in waiting]
    assert [reply.status for reply in replies] == [200] * 3
    assert len({reply.body for reply in replies}) == 1
    assert upstream.count == 2


class Refusing(TcpService):
    """An upstream that answers each call with a refusal, once it is allowed to."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.gate = asyncio.Event()

    async def serve(self, reader, writer):
        """Read one request, wait, refuse."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        self.calls += 1
        await self.gate.wait()
        body = (
            b'{"error":{"message":"too many","type":"x","param":null,"code":"rate_limit_exceeded","call":%d}}'
            % self.calls
        )
        writer.write(b"HTTP/1.1 429 Slow Down\r\nContent-Type: application/json\r\nRetry-After: 9\r\n")
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()


async def test_those_who_joined_get_the_refusal_and_then_the_key_is_free(start):
    """F6: a refusal of the upstream is told to all who joined; the next request with the key asks again."""
    async with Refusing() as refusing:
        gateway = await start(upstream=f"http://127.0.0.1:{refusing.port}/v1")
        asking = [asyncio.create_task(gateway.chat("hello", key="k", stream=i == 2)) for i in range(4)]
        await until(lambda: refusing.calls == 1)
        await asyncio.wait(asking, timeout=0.1)
        refusing.gate.set()
        replies = [await task for task in asking]
        assert {(reply.status, reply.body, reply.headers["Retry-After"]) for reply in replies} == {
            (429, replies[0].body, "9")
        }
        assert refusing.calls == 1
        assert (await gateway.chat("hello", key="k")).json()["error"]["call"] == 2
