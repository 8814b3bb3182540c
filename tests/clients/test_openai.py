"""What the official client makes of a replica, its own silent retries included."""

import asyncio
from typing import Any

import openai
import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import hold, user
from tests.support.waiting import until

HELLO: list[Any] = [user("hello you")]


def keyed(key):
    """Options of a call with an Idempotency-Key."""
    return {"extra_headers": {"Idempotency-Key": key}}


def named(session_id, **headers):
    """Options of a call that names its session."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"extra_headers": {"X-Hermes-Session-Id": session_id, **sent}}


async def test_a_json_answer(client, upstream):
    """H7: the answer parses, keeps the upstream's id, and the session can be read from the headers."""
    raw = await client.chat.completions.with_raw_response.create(model="ok", messages=HELLO)
    answer = raw.parse()
    assert (answer.id, answer.choices[0].message.content) == ("chatcmpl-1", "hello you")
    assert answer.usage.total_tokens == 4
    assert raw.headers["X-Hermes-Session-Id"].startswith("ses_i")
    again = await client.chat.completions.with_raw_response.create(model="ok", messages=HELLO)
    assert again.headers["X-Hermes-Session-Id"] == raw.headers["X-Hermes-Session-Id"]
    assert (upstream.count, client.sent) == (2, 2)


@pytest.mark.parametrize("options", [{}, keyed("k")])
async def test_a_stream(client, upstream, options):
    """H1, F1: chunks, usage and end are the client's, also when a retry replays them."""
    for _ in range(2 if options else 1):
        chunks = await client.chat.completions.create(
            model="ok", messages=HELLO, stream=True, stream_options={"include_usage": True}, **options
        )
        received = [chunk async for chunk in chunks]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in received if chunk.choices)
        assert (text, received[-1].usage.total_tokens) == ("hello you", 4)
        assert {chunk.id for chunk in received} == {"chatcmpl-1"}
    assert upstream.count == 1


@pytest.mark.parametrize("first_streams", [True, False])
async def test_tool_calls_survive_a_replay_in_the_other_form(client, upstream, first_streams):
    """F1, F4: whether streamed or whole, the client reads the same tool calls."""

    async def ask(streams):
        if not streams:
            whole = await client.chat.completions.create(model="tools", messages=HELLO, **keyed("k"))
            return whole.choices[0]
        async with client.chat.completions.stream(model="tools", messages=HELLO, **keyed("k")) as stream:
            return (await stream.get_final_completion()).choices[0]

    first, other = await ask(first_streams), await ask(not first_streams)
    assert first.finish_reason == other.finish_reason == "tool_calls"
    calls = [
        [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        for choice in (first, other)
    ]
    assert len(calls[0]) == 2
    assert calls[0] == calls[1]
    assert upstream.count == 1


async def test_the_models(client):
    """H7: the upstream's models are listed."""
    assert [model.id async for model in client.models.list()] == ["ok", "tools"]


async def test_the_blocking_client(gateway):
    """H1: the same without asyncio."""

    def ask():
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="one") as client:
            whole = client.chat.completions.create(model="ok", messages=HELLO)
            chunks: Any = client.chat.completions.create(model="ok", messages=HELLO, stream=True)
            return whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert await asyncio.to_thread(ask) == ("hello you", "hello you")


@pytest.mark.parametrize("stream", [False, True])
async def test_its_retry_after_a_time_out_joins_the_turn(connect, gateway, upstream, stream):
    """F3: a client that lost patience sends the request again by itself: the turn that runs answers it."""
    client = connect(gateway, timeout=0.3)
    call = client.chat.completions.create(model="gate", messages=HELLO, stream=stream, **keyed("k"))
    asking = asyncio.create_task(call)
    await until(lambda: client.sent == 2)
    upstream.release()
    answer = await asking
    ids = {chunk.id async for chunk in answer} if stream else {answer.id}
    assert ids == {"chatcmpl-1"}
    assert (client.sent, upstream.count, upstream.aborted) == (2, 1, 0)


async def test_its_retry_without_a_key_does_not_run_beside_the_first(connect, gateway, upstream):
    """G1, H4: a request given up and sent again without a key never overlaps with its first try."""
    client = connect(gateway, timeout=0.3)
    upstream.upcoming.extend(["hang", "ok"])
    answer = await client.chat.completions.create(model="ok", messages=HELLO, **named("s"))
    assert answer.id == "chatcmpl-2"
    assert (upstream.count, upstream.aborted, upstream.max_overlap) == (2, 1, 1)


@pytest.mark.parametrize("mode", ["status:500", "reset_before", "malformed", "truncated"])
@pytest.mark.parametrize("options", [{}, keyed("k")])
async def test_a_failed_turn_is_sent_once(client, upstream, mode, options):
    """J10: what may have run is not sent again by the client itself, with or without a key."""
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model=mode, messages=HELLO, **options)
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_failed")
    assert (client.sent, upstream.count) == (1, 1)


@pytest.mark.parametrize("options", [{}, keyed("k")])
async def test_an_error_within_a_stream_is_raised(client, upstream, options):
    """H5: the client raises the last event of a stream that failed, and does not start over."""
    chunks = await client.chat.completions.create(model="reset_mid", messages=HELLO, stream=True, **options)
    assert (await anext(chunks)).choices[0].delta.content == "hello"
    with pytest.raises(openai.APIError) as failed:
        await anext(chunks)
    assert failed.value.code == "upstream_failed"
    assert (client.sent, upstream.count) == (1, 1)


async def test_a_conflict_is_sent_once(client, upstream):
    """F2, J10: a key used for another request is a ConflictError at the first try."""
    await client.chat.completions.create(model="ok", messages=HELLO, **keyed("k"))
    with pytest.raises(openai.ConflictError) as conflict:
        await client.chat.completions.create(model="ok", messages=[user("other")], **keyed("k"))
    assert conflict.value.code == "admission_conflict"
    assert (client.sent, upstream.count) == (2, 1)


async def test_a_busy_session_is_tried_again(connect, start, upstream):
    """G3, J10: `session_busy` tells when to come again, and the client does so by itself."""
    gateway = await start(lease_ms=1_500)
    client = connect(gateway)
    running = await hold(gateway, upstream, "hello", session_id="s")
    policy = named("s", X_Hermes_Turn_Policy="reject")
    asking = asyncio.create_task(client.chat.completions.create(model="ok", messages=HELLO, **policy))
    await until(lambda: client.answered == 1)
    upstream.release()
    assert (await running).status == 200
    assert (await asking).id == "chatcmpl-2"
    assert client.sent == 2


async def test_a_store_that_comes_back_is_not_noticed(connect, start_own, own_server, upstream):
    """J1, J10: `storage_unavailable` is retried by the client, and the turn runs once."""
    client = connect(await start_own())
    await client.chat.completions.create(model="ok", messages=HELLO)
    own_server.kill()
    asking = asyncio.create_task(client.chat.completions.create(model="ok", messages=HELLO, **keyed("k")))
    await until(lambda: client.answered == 2)
    own_server.start()
    assert (await asking).id == "chatcmpl-2"
    assert (client.sent, upstream.count) == (3, 2)


async def retired(gateway, client):
    """A session that was deleted."""
    await gateway.chat("hello", session_id="s", api_key="one")
    await gateway.delete("s", api_key="one")
    return client.chat.completions.create(model="ok", messages=HELLO, **named("s"))


async def unknown_model(gateway, client):
    """A model that the upstream does not have."""
    return client.chat.completions.create(model="no-such-model", messages=HELLO)


async def wrong(gateway, client):
    """A request without a user message."""
    return client.chat.completions.create(model="ok", messages=[{"role": "system", "content": "x"}])


async def unauthorized(gateway, client):
    """A wrong API key."""
    wrong_key = {"Authorization": "Bearer wrong"}
    return client.chat.completions.create(model="ok", messages=HELLO, extra_headers=wrong_key)


async def too_many(gateway, client):
    """An upstream that asks to slow down."""
    return client.chat.completions.create(model="status:429", messages=HELLO)


async def draining(gateway, client):
    """A replica on its way out."""
    gateway.coordinator.drain()
    return client.chat.completions.create(model="ok", messages=HELLO)


@pytest.mark.parametrize(
    ("case", "kind", "code"),
    [
        (retired, openai.NotFoundError, "not_found"),
        (unknown_model, openai.NotFoundError, "model_not_found"),
        (wrong, openai.BadRequestError, "invalid_messages"),
        (unauthorized, openai.AuthenticationError, "invalid_api_key"),
        (too_many, openai.RateLimitError, "rate_limit_exceeded"),
        (draining, openai.InternalServerError, "gateway_draining"),
    ],
)
async def test_errors_are_of_the_classes_that_programs_catch(start, connect, case, kind, code):
    """J8: status and code arrive as the client's own exceptions."""
    gateway = await start(keys=ApiKeys.load(None, "default:one"))
    client = connect(gateway, max_retries=0)
    with pytest.raises(kind) as refused:
        await (await case(gateway, client))
    assert refused.value.code == code
    assert refused.value.body["message"]
    assert (refused.value.param == "messages") == (case is wrong)
