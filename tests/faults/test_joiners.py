"""Many who ask the same, while the upstream is about to refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.faults.scenario import rounds
from tests.support.process import LOCALHOST
from tests.support.waiting import until

REFUSAL = b'{"error": {"message": "no such model", "type": "invalid_request_error", "param": null, "code": "x"}}'


class Refusing:
    """An upstream that thinks about it, and refuses."""

    def __init__(self) -> None:
        self.status = 400
        self.calls = 0
        self.go = asyncio.Event()
        self.url = ""

    async def post(self, request: web.Request) -> web.Response:
        """The refusal, once it may be told."""
        await request.read()
        self.calls += 1
        await self.go.wait()
        return web.Response(status=self.status, body=REFUSAL, content_type="application/json")


@asynccontextmanager
async def refusing() -> AsyncIterator[Refusing]:
    """One at a port of its own."""
    upstream = Refusing()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", upstream.post)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOCALHOST, 0).start()
        upstream.url = f"http://{LOCALHOST}:{runner.addresses[0][1]}/v1"
        yield upstream
    finally:
        upstream.go.set()
        await runner.cleanup()


@rounds(short=3, long=90)
async def test_twenty_joiners_of_a_refused_turn(start, story, rounds):
    """F6: one upstream call, twenty equal refusals as JSON, whatever form was asked for, and the key is free."""
    async with refusing() as upstream:
        fleet = await start(2, model=upstream.url)
        for number in range(rounds):
            upstream.calls, upstream.status = 0, (400, 429, 503)[number % 3]
            upstream.go.clear()
            options = {"session_id": f"s{number}", "key": f"k{number}"}
            asking = [
                asyncio.create_task(fleet.chat("hello", stream=story.flip() or n == 0, **options)) for n in range(20)
            ]
            await until(lambda: upstream.calls == 1)
            await asyncio.sleep(story.random.uniform(0.05, 0.3))
            upstream.go.set()
            replies = await asyncio.gather(*asking)
            story.tell(
                f"round {number}: {upstream.calls} upstream call, {len({reply.body for reply in replies})} answer"
            )
            assert {(reply.status, reply.body, reply.replayed) for reply in replies} == {
                (upstream.status, REFUSAL, False)
            }
            assert upstream.calls == 1
            again = await fleet.chat("hello", **options)
            assert (again.status, upstream.calls) == (upstream.status, 2)
