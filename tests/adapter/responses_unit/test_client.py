"""The official client reads what is made here, as it comes off the wire."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from gateway_adapter.responses.messages import chat_messages
from gateway_adapter.responses.objects import response_object
from gateway_adapter.responses.outputs import output_of
from gateway_adapter.responses.request import chat_body, parse_responses
from gateway_adapter.sse import with_id
from tests.adapter.responses_unit.shapes import (
    CREATED_AT,
    MESSAGE,
    RESPONSE_ID,
    TOOL,
    TURN,
    USAGE,
    answer,
    events_of,
)  # fmt: skip


@pytest.fixture
async def client():
    """The client of a server whose model always says the same; asked about a failure, it fails."""

    async def post(request):
        asked = parse_responses(await request.read())
        body = json.loads(chat_body(asked, chat_messages(asked.input_items), stream=asked.stream))
        said = answer(MESSAGE, "tool_calls" if body["tools"] else "stop", usage=USAGE)
        if not asked.stream:
            output = output_of(said, TURN)
            return web.json_response(
                response_object(
                    asked, response_id=RESPONSE_ID, created_at=CREATED_AT, status=output.status, output=output
                )
            )
        events = events_of(asked)
        blocks = events.start() + events.whole(said)
        last = events.fail("server_error", "It failed.") if asked.metadata else events.finish()[0]
        numbered = [with_id(block, number) for number, block in enumerate(blocks + last)]
        return web.Response(body=b"".join(numbered), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/responses", post)
    async with TestServer(app) as server, AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="x") as client:
        yield client


async def test_the_client_reads_both_forms_alike(client):
    """I1: the object, and the stream with its events in order, come to the same response."""
    asked = {"model": "m", "input": "Hi", "tools": [TOOL]}
    plain = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_response()
    for response in (plain, streamed):
        assert (response.id, response.status, response.usage.total_tokens) == (RESPONSE_ID, "completed", 8)
        assert response.output_text == MESSAGE["content"]
        calls = [item for item in response.output if item.type == "function_call"]
        assert [(call.call_id, call.arguments) for call in calls] == [
            ("call_a", '{"n": 9007199254740993}'),
            ("call_b", ""),
        ]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_the_client_reads_a_failure(client):
    """H5: a stream that fails ends in an event that the client knows, with numbers up to the last."""
    stream = await client.responses.create(model="m", input="Hi", tools=[TOOL], metadata={"a": "b"}, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
    assert events[-1].response.error.message == "It failed."
