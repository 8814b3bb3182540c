"""The official client's responses and conversations, over two replicas that it knows as one address."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import Client
from tests.support.balancer import RoundRobinBalancer
from tests.support.waiting import until

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


@pytest.fixture
async def balancer(start):
    """Two replicas that take requests in turn."""
    urls = [(await start(lease_ms=3_000)).url, (await start(lease_ms=3_000)).url]
    async with RoundRobinBalancer(urls) as running:
        yield running
        assert len(running.served) == min(2, running.served.total())


@pytest.fixture
async def client(balancer):
    """The client, as it comes."""
    async with AsyncExitStack() as stack:
        made = Client(balancer.url)
        stack.push_async_callback(made.close)
        yield made


async def test_create_and_retrieve(client, balancer):
    """I1: what one replica made the other gives back; the SDK reads the same of both."""
    made = await client.responses.create(model="ok", input="hello you", metadata={"a": "b"})
    assert (made.output_text, made.status, made.metadata, made.error) == ("hello you", "completed", {"a": "b"}, None)
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens == 4
    for _ in range(2):
        assert await client.responses.retrieve(made.id) == made
    assert len(balancer.served) == 2
    assert (await client.responses.delete(made.id)) is None
    with pytest.raises(openai.NotFoundError) as gone:
        await client.responses.retrieve(made.id)
    assert gone.value.code == "not_found"
    assert client.sent == 5


async def test_a_stream_by_its_events(client):
    """I1, H1: typed events in order, the last with the response that is then retrieved."""
    stream = await client.responses.create(model="ok", input="one two three", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "one two three"
    assert events[-1].type == "response.completed"
    assert await client.responses.retrieve(events[-1].response.id) == events[-1].response


async def test_the_stream_helper(client):
    """I1: the SDK's own accumulation agrees with what it was told at the end."""
    async with client.responses.stream(model="ok", input="one two") as stream:
        texts = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (texts, final.output_text, final.status) == (["one", "one two"], "one two", "completed")


async def test_a_chain(client, upstream):
    """I2: from the newest on, from an older one a branch; each at the next replica."""
    first = await client.responses.create(model="ok", input="one")
    second = await client.responses.create(model="ok", input="two", previous_response_id=first.id)
    branch = await client.responses.create(model="ok", input="other", previous_response_id=first.id)
    assert second.conversation == first.conversation != branch.conversation
    sent = [[message["content"] for message in call.json()["messages"]] for call in upstream.calls]
    assert sent == [["one"], ["one", "one", "two"], ["one", "one", "other"]]
    for wrong in ("resp_garbage", first.id[:-1] + ("0" if first.id[-1] != "0" else "1")):
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="ok", input="x", previous_response_id=wrong)
    assert (client.sent, upstream.count) == (5, 3)


async def test_background_and_poll(client):
    """I1, I4: created, polled at both replicas to its end."""
    made = await client.responses.create(model="slow:0.02", input="one two", background=True)
    assert made.status in ("queued", "in_progress")

    async def done() -> bool:
        nonlocal made
        made = await client.responses.retrieve(made.id)
        return made.status not in ("queued", "in_progress")

    await until(done, what="the end")
    assert (made.status, made.output_text, made.background) == ("completed", "one two", True)


async def test_cancel(client, upstream):
    """I1, G7: whichever replica is asked; again, it stays so."""
    for _ in range(2):  # once at either replica
        made = await client.responses.create(model="gate", input="one", background=True)
        await upstream.until(lambda up: up.running == 1)
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        assert (await client.responses.retrieve(made.id)).status == "cancelled"
        await upstream.until(lambda up: up.running == 0)
    assert upstream.aborted == 2


@pytest.mark.parametrize("after", [0, 3, 5, 9])
async def test_a_background_stream_goes_on_at_the_other_replica(client, upstream, after):
    """H2, I1: left after any event, resumed with `starting_after`: nothing is lost or repeated."""
    stream = await client.responses.create(model="slow:0.01", input="one two", background=True, stream=True)
    received = []
    async for event in stream:
        received.append(event)
        if event.sequence_number == after:
            break
    await stream.close()
    found = received[0].response.id
    rest = await client.responses.retrieve(found, stream=True, starting_after=after)
    received += [event async for event in rest]
    assert [event.sequence_number for event in received] == [*range(10)]
    assert received[-1].response == await client.responses.retrieve(found)
    assert upstream.count == 1


async def test_the_stream_helper_goes_on(client):
    """H2: the SDK's helper over `starting_after` tells the rest, and the whole response at the end."""
    made = await client.responses.create(model="ok", input="one two", background=True)
    async with client.responses.stream(response_id=made.id, starting_after=4) as stream:
        numbers = [event.sequence_number async for event in stream]
        final = await stream.get_final_response()
    assert (numbers, final.output_text) == ([*range(5, 10)], "one two")


async def test_a_failed_stream_is_raised_or_told(client, upstream):
    """H5: a failure in the middle is the typed event the SDK knows; before the stream it is an exception, sent once."""
    stream = await client.responses.create(model="truncated", input="one two", stream=True)
    events = [event async for event in stream]
    assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "upstream_failed")
    with pytest.raises(openai.InternalServerError) as failed:
        await client.responses.create(model="status:500", input="one", stream=True)
    assert failed.value.code == "upstream_failed"
    assert (client.sent, upstream.count) == (2, 2)


async def test_function_calls(client, upstream):
    """I1: the SDK's tool loop: calls out, outputs in by the chain, at the other replica."""
    made = await client.responses.create(model="tools", input="weather?", tools=TOOLS)
    calls = [item for item in made.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments) == {"city": "Zürich", "days": 3}
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls
    ]
    done = await client.responses.create(model="ok", input=outputs, previous_response_id=made.id, tools=TOOLS)
    assert done.status == "completed"
    roles = [message["role"] for message in upstream.calls[1].json()["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    async with client.responses.stream(model="tools", input="weather?", tools=TOOLS) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 2
    assert [item.name for item in final.output] == ["get_weather", "get_time"]


async def test_structured_output(client, upstream):
    """I1: the SDK's parser sends a schema that the upstream gets, and reads the answer."""

    class Point(BaseModel):
        x: int

    parsed = await client.responses.parse(model="ok", input='{"x": 7}', text_format=Point)
    assert parsed.output_parsed == Point(x=7)
    assert upstream.calls[0].json()["response_format"]["json_schema"]["name"] == "Point"


async def test_input_items(client):
    """I1: listed through the SDK's pages."""
    made = await client.responses.create(model="ok", input=[{"role": "user", "content": "one"}])
    items = [item async for item in client.responses.input_items.list(made.id)]
    assert [(item.type, item.content[0].text) for item in items] == [("message", "one")]


async def test_conversations(client, upstream):
    """I1: created with items, used by responses, read by pages, changed and deleted, at replicas in turn."""
    made = await client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "one"}])
    await client.conversations.items.create(made.id, items=[{"role": "user", "content": "two"}])
    for text in ("three", "four"):
        reply = await client.responses.create(model="ok", input=text, conversation=made.id)
        assert reply.conversation.id == made.id
    items = [item async for item in client.conversations.items.list(made.id)]
    assert [item.content[0].text for item in items] == ["one", "two", "three", "three", "four", "four"]
    assert len({item.id for item in items}) == 6
    changed = await client.conversations.update(made.id, metadata={"c": "d"})
    assert (await client.conversations.retrieve(made.id)) == changed
    assert (changed.metadata, changed.created_at) == ({"c": "d"}, made.created_at)
    deleted = await client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="ok", input="x", conversation=made.id)
    assert upstream.count == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_its_own_retry_of_a_keyed_request_runs_once(balancer, upstream, stream):
    """F3, B32: a client that loses patience sends it again by itself, to the other replica: one response is made."""
    async with Client(balancer.url, timeout=0.3) as impatient:
        headers = {"Idempotency-Key": "k"}
        asking = asyncio.create_task(
            impatient.responses.create(model="gate", input="one", stream=stream, extra_headers=headers)
        )
        await until(lambda: impatient.sent == 2)
        upstream.release()
        answer: Any = await asking
        made = [event async for event in answer][-1].response if stream else answer
    assert (made.output_text, impatient.sent, upstream.count, upstream.aborted) == ("one", 2, 1, 0)
