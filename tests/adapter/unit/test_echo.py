"""The built-in echo model."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from gateway_adapter.completions import Aggregator
from gateway_adapter.executors import EchoExecutor
from gateway_adapter.sse import data_of, is_done


def request(*messages, **fields):
    """A chat body with these messages."""
    return json.dumps({"model": "echo", "messages": list(messages), **fields}).encode()


def user(content):
    """A user message."""
    return {"role": "user", "content": content}


async def blocks_of(body):
    """The event blocks the echo streams."""
    async with EchoExecutor() as echo, echo.chat(body, stream=True, headers={}) as answer:
        assert (answer.status, answer.content_type, answer.body) == (200, "text/event-stream", None)
        assert answer.events is not None
        return [block async for block in answer.events]


async def answer_to(body) -> dict[str, Any]:
    """The JSON answer of the echo."""
    async with EchoExecutor() as echo, echo.chat(body, stream=False, headers={}) as answer:
        assert (answer.status, answer.content_type, answer.events) == (200, "application/json", None)
        return json.loads(answer.body or b"")


def json_of(block):
    """The chunk in an event block."""
    return json.loads(data_of(block) or b"")


def content_of(answer):
    """What the answer says."""
    return answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([user("one"), {"role": "assistant", "content": "x"}, user("  two\n three ")], "  two\n three "),
        ([user([{"type": "text", "text": "a "}, {"type": "image_url"}, {"type": "input_text", "text": "b"}])], "a b"),
        ([user("hi"), {"role": "tool", "content": "42"}], "hi"),
        ([user("\x00 \U0001f642 \ud83d")], "\x00 \U0001f642 \ud83d"),
        ([user(None)], ""),
        ([], ""),
        ([7, {"role": "user", "content": 7}], ""),
    ],
)
async def test_the_last_user_text_comes_back(messages, text):
    """H7: the answer is the last user text, from a string or from its text parts, to the last character."""
    assert content_of(await answer_to(request(*messages))) == text


@given(text=st.text(max_size=30))
def test_the_streamed_words_are_the_text(text):
    """H1, J4: the pieces of the stream put together are the text of the JSON answer, white space included."""
    aggregator = Aggregator()
    for block in asyncio.run(blocks_of(request(user(text)))):
        aggregator.add(block)
    assert aggregator.complete
    assert content_of(json.loads(aggregator.body())) == text


async def test_the_stream_goes_word_by_word():
    """H1: a role, a chunk for each word, a finish reason, the usage when asked for, `[DONE]`; one id throughout."""
    blocks = await blocks_of(request(user("be kind now"), stream_options={"include_usage": True}))
    chunks = [json_of(block) for block in blocks[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "be "},
        {"content": "kind "},
        {"content": "now"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 4 + ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert is_done(blocks[-1])
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert not any("usage" in json_of(block) for block in (await blocks_of(request(user("hi"))))[:-1])


async def test_each_answer_has_an_id_of_its_own():
    """H7: answers are told apart by an id of OpenAI's form, and name the model that was asked for."""
    first, second = [await answer_to(request(user("hi"), model="gpt-x")) for _ in range(2)]
    assert first["id"] != second["id"]
    assert (first["id"][:9], len(first["id"])) == ("chatcmpl-", 9 + 24)
    assert int(first["id"][9:], 16) >= 0
    assert (first["model"], first["object"]) == ("gpt-x", "chat.completion")
    assert first["usage"]["total_tokens"] == 2


@pytest.mark.parametrize(("model", "pauses_s"), [("echo-slow", [0.1, 0.1]), ("echo", [0, 0])])
async def test_only_the_slow_model_takes_its_time(model, pauses_s, monkeypatch):
    """G3: `echo-slow` waits 100 ms before each word, in either form, so that a turn can be seen running."""
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("gateway_adapter.executors.echo.asyncio.sleep", sleep)
    body = request(user("two words"), model=model)
    await blocks_of(body)
    await answer_to(body)
    assert slept == pauses_s * 2


async def test_the_two_models_are_listed():
    """H1: the models a client may choose from are listed as OpenAI lists them."""
    async with EchoExecutor() as echo:
        answer = await echo.models()
    assert [(model["id"], model["object"]) for model in json.loads(answer.body or b"")["data"]] == [
        ("echo", "model"),
        ("echo-slow", "model"),
    ]


async def test_the_openai_client_reads_the_echo():
    """H1: the real client reads the JSON answer, the stream and the models."""
    async with EchoExecutor() as echo:

        async def chat(request):
            body = await request.read()
            stream = json.loads(body).get("stream", False)
            async with echo.chat(body, stream=stream, headers={}) as answer:
                if answer.events is None:
                    return web.Response(body=answer.body, content_type=answer.content_type)
                body = b"".join([block async for block in answer.events])
                return web.Response(body=body, content_type=answer.content_type)

        async def models(request):
            return web.Response(body=(await echo.models()).body, content_type="application/json")

        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/v1/models", models)
        async with TestServer(app) as server, AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="x") as client:
            asked: dict[str, Any] = {"model": "echo", "messages": [user("hello big world")]}
            plain = await client.chat.completions.create(**asked)
            pieces = [
                choice.delta.content or ""
                async for chunk in await client.chat.completions.create(**asked, stream=True)
                for choice in chunk.choices
            ]
            names = [model.id async for model in client.models.list()]
    assert plain.choices[0].message.content == "".join(pieces) == "hello big world"
    assert pieces == ["", "hello ", "big ", "world", ""]
    assert names == ["echo", "echo-slow"]
