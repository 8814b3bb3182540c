"""The stub model server of the kit."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from tests.support.answers import SECRET, weird_json
from tests.support.clients import Reply, RoundRobin, chat, request
from tests.support.upstream import StubUpstream
from tests.support.waiting import until


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as opened:
        yield opened


async def ask(
    session: aiohttp.ClientSession, upstream: StubUpstream, model: str, *, stream: bool = False, text: str = "hi you"
) -> Reply:
    """One chat completion straight from the stub."""
    return await chat(session, upstream.url.removesuffix("/v1"), text, model=model, stream=stream)


@pytest.mark.parametrize("model", ["ok", "slow:0.01", "gpt-anything", "big:50000"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_answer(session: aiohttp.ClientSession, upstream: StubUpstream, model: str, stream: bool) -> None:
    """Both forms carry the same text, ids are never repeated, and the call records exactly what was sent."""
    replies = [await ask(session, upstream, model, stream=stream, text="Grüße  an alle\n") for _ in range(2)]
    expected = "x" * 50_000 if model.startswith("big") else "Grüße  an alle\n"
    assert [reply.text() for reply in replies] == [expected] * 2
    assert [b"chatcmpl-1" in replies[0].body, b"chatcmpl-2" in replies[1].body] == [True, True]
    assert [bytes(call.sent) for call in upstream.calls] == [reply.body for reply in replies]
    assert upstream.calls[0].json()["model"] == model
    assert upstream.calls[0].path == "/v1/chat/completions"
    assert all(call.ended is not None and not call.aborted for call in upstream.calls)
    if stream:
        assert replies[0].events()[-1] == "[DONE]"
        assert '"finish_reason": "stop"' in replies[0].events()[-2]


async def test_the_official_client_understands_it(upstream: StubUpstream) -> None:
    """Tool calls, usage and the model list are what the real client expects."""
    async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["ok", "tools"]
        parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": " you"}]
        split: list[Any] = [{"role": "user", "content": parts}]
        plain: list[Any] = [{"role": "user", "content": "hi"}]
        chunks = await client.chat.completions.create(
            model="ok", messages=split, stream=True, stream_options={"include_usage": True}
        )
        received = [chunk async for chunk in chunks]
        assert [chunk.choices[0].delta.content for chunk in received[:2]] == ["hi", " you"]
        assert received[-1].usage is not None
        assert received[-1].usage.total_tokens == 4
        whole = await client.chat.completions.create(model="tools", messages=plain)
        calls = whole.choices[0].message.tool_calls or []
        async with client.chat.completions.stream(model="tools", messages=plain) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        assert streamed.finish_reason == "tool_calls"
        arguments = [call.function.arguments for call in streamed.message.tool_calls or []]
        assert arguments == [call.function.arguments for call in calls if call.type == "function"]
        assert json.loads(arguments[0]) == {"city": "Zürich", "days": 3}
    assert upstream.count == 3


async def test_odd_bytes_are_valid(session: aiohttp.ClientSession, upstream: StubUpstream) -> None:
    """The odd answers parse, and hold what a careless gateway breaks."""
    reply = await ask(session, upstream, "weird")
    assert reply.body == weird_json(1)
    parsed = reply.json()
    assert (parsed["empty"], parsed["none"], parsed["bigger"]) == ([], {}, 12345678901234567890)
    assert reply.text() == "\x00 😀 😀 é / end"
    assert (await ask(session, upstream, "weird", stream=True)).text() == "a😀\x00z"


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("status:500", 500, None),
        ("status:400", 400, None),
        ("status:401", 401, "invalid_api_key"),
        ("status:429", 429, "rate_limit_exceeded"),
        ("no-such-model", 404, "model_not_found"),
    ],
)
async def test_error_answers(
    session: aiohttp.ClientSession, upstream: StubUpstream, model: str, status: int, code: str | None
) -> None:
    """Errors are the usual envelope, as JSON also for a stream; 401 holds the secret and 429 the time to wait."""
    reply = await ask(session, upstream, model, stream=True)
    assert (reply.status, reply.code) == (status, code)
    assert (SECRET.encode() in reply.body) == (status == 401)
    assert reply.headers.get("Retry-After") == ("7" if status == 429 else None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["reset_before", "reset_mid", "truncated", "malformed"])
async def test_broken_answers(session: aiohttp.ClientSession, upstream: StubUpstream, model: str, stream: bool) -> None:
    """A reset is an error of the connection; a truncated answer ends cleanly and is incomplete; none is an abort."""
    if model.startswith("reset"):
        with pytest.raises(aiohttp.ClientError) as raised:
            await ask(session, upstream, model, stream=stream)
        errors = (raised.value, raised.value.__cause__)
        assert any(isinstance(error, OSError) and error.errno == errno.ECONNRESET for error in errors)
        assert bool(upstream.calls[0].sent) == (model == "reset_mid")
    else:
        reply = await ask(session, upstream, model, stream=stream)
        assert reply.status == 200
        assert (b"[DONE]" in reply.body) == (stream and model == "malformed")
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            json.loads(reply.events()[0] if stream and model == "malformed" else reply.body)
    await upstream.until(lambda up: up.running == 0)
    assert upstream.aborted == 0


@pytest.mark.parametrize("model", ["hang", "hang_mid", "gate", "gate_mid"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_is_noticed_in_silence(
    session: aiohttp.ClientSession, upstream: StubUpstream, model: str, stream: bool
) -> None:
    """While the stub says nothing it still sees at once that nobody listens any more."""
    asking = asyncio.create_task(ask(session, upstream, model, stream=stream))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent) == model.endswith("_mid"))
    asking.cancel()
    await upstream.until(lambda up: up.aborted == 1, timeout_s=0.5)
    assert upstream.running == 0
    assert upstream.calls[0].aborted


@pytest.mark.parametrize("model", ["hang", "hang_mid", "gate"])
async def test_the_end_of_the_stub_ends_its_calls(session: aiohttp.ClientSession, model: str) -> None:
    """A test may end while calls hang: their callers see a broken connection, and it counts as nobody's abort."""
    async with StubUpstream() as upstream:
        asking = asyncio.create_task(ask(session, upstream, model, stream=True))
        await upstream.until(lambda up: up.running == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert (upstream.running, upstream.aborted) == (0, 0)
    with pytest.raises(aiohttp.ClientError):
        await asking


async def test_gates_open_one_conversation_at_a_time(session: aiohttp.ClientSession, upstream: StubUpstream) -> None:
    """Overlap is counted over all and per opening, and a gate can be opened for one opening only."""
    upstream.mode = "gate"
    texts = ["a", "a", "b"]
    asking = [asyncio.create_task(ask(session, upstream, "ok", text=text)) for text in texts]
    await upstream.until(lambda up: up.running == 3)
    assert upstream.release("b") == 1
    assert (await asking[2]).text() == "b"
    assert upstream.running == 2
    assert upstream.release() == 2
    await asyncio.gather(*asking)
    assert (upstream.max_overlap, upstream.overlap("a"), upstream.overlap("b")) == (3, 2, 1)
    assert len(upstream.calls_of("a")) == 2


async def test_upcoming_modes_come_first(session: aiohttp.ClientSession, upstream: StubUpstream) -> None:
    """A list of modes is used up call by call, before the fixed mode and the request's model."""
    upstream.upcoming.extend(["status:503", "ok"])
    upstream.mode = "status:500"
    assert [(await ask(session, upstream, "ok")).status for _ in range(3)] == [503, 200, 500]


async def test_requests_it_cannot_read_are_refused_and_counted(
    session: aiohttp.ClientSession, upstream: StubUpstream
) -> None:
    """A wrong path or body is a call that reached the upstream, and an error."""
    assert (await request(session, "POST", f"{upstream.url}/responses", json={})).status == 404
    assert (await request(session, "POST", f"{upstream.url}/chat/completions", json=[])).status == 400
    assert upstream.count == 2


def test_the_stub_works_in_a_thread() -> None:
    """Code without a loop of its own can count calls and open gates."""

    async def ask_in_own_loop() -> str:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(ask(session, up, "gate"))
            await until(lambda: up.release() > 0)
            return (await asking).text()

    with StubUpstream.threaded() as up:
        began = time.monotonic()
        assert asyncio.run(ask_in_own_loop()) == "hi you"
        assert up.count == 1
        assert began <= up.calls[0].started


def test_round_robin_repeats_in_order() -> None:
    """Each address has its turn."""
    addresses = RoundRobin(["a", "b"])
    assert [next(addresses) for _ in range(3)] == ["a", "b", "a"]
