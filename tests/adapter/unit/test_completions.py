"""The two forms of a chat answer and the way from each to the other."""

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from gateway_adapter.completions import Aggregator, as_events, assistant_message_of
from gateway_adapter.sse import DONE, KEEP_ALIVE, data_of, event, is_done

MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "Hello\x00 \U0001f642 \ud83d wörld",
    "refusal": None,
    "reasoning_content": "Because.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"n": 9007199254740993}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
    ],
}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 12345678901234567890123,
    "model": "m-1",
    "system_fingerprint": None,
    "service_tier": "default",
    "choices": [
        {
            "index": 0,
            "message": MESSAGE,
            "logprobs": {"content": [{"token": "H", "logprob": -0.5}]},
            "finish_reason": "stop",
        },
        {"index": 1, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": "length"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 9007199254740993, "total_tokens": 9007199254740996},
}


def chunk(delta=None, finish=None, /, **fields):
    """An event with one chunk of a chat stream."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return event(json.dumps(head | {"choices": choices} | fields).encode())


def aggregated(*blocks):
    """An aggregator that has read these blocks."""
    aggregator = Aggregator()
    for block in blocks:
        aggregator.add(block)
    return aggregator


def message_of(*blocks):
    """The first message these blocks amount to."""
    return json.loads(aggregated(*blocks).body())["choices"][0]["message"]


def test_a_streamed_answer_equals_its_json_form():
    """F1, F4: an answer turned into events and back has the same content, calls, ids, usage and reason."""
    aggregator = aggregated(*as_events(json.dumps(ANSWER).encode(), include_usage=True))
    assert json.loads(aggregator.body()) == ANSWER
    assert (aggregator.complete, aggregator.seen_done, aggregator.failed) == (True, True, False)


TEXT = st.text(max_size=20)
ANYTHING = st.none() | TEXT | st.integers() | st.lists(st.integers(), max_size=3)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXT},
    optional={
        "refusal": st.none() | TEXT,
        "reasoning": TEXT,
        "annotations": st.lists(st.integers(), max_size=3),
        "something_new": ANYTHING,
        "function_call": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"id": st.text(min_size=1), "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})}
            ),
            min_size=1,
            max_size=3,
        ),
    },
)
CHOICES = st.lists(st.tuples(MESSAGES, st.sampled_from(["stop", "tool_calls"])), min_size=1, max_size=3)


@given(choices=CHOICES, usage=st.booleans())
def test_any_answer_survives_both_ways(choices, usage):
    """F1, J4: for any message the way to events and back loses and adds nothing."""
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": index, "message": message, "finish_reason": reason}
            for index, (message, reason) in enumerate(choices)
        ],
        "usage": {"total_tokens": 2},
    }
    expected = answer if usage else {name: value for name, value in answer.items() if name != "usage"}
    assert json.loads(aggregated(*as_events(json.dumps(answer).encode(), usage)).body()) == expected


def test_deltas_are_put_together():
    """F4: texts, known and unknown, are concatenated; other unknown fields keep the last value."""
    message = message_of(
        chunk({"role": "assistant", "content": "", "score": 1}),
        KEEP_ALIVE,
        chunk({"role": "assistant", "content": "Hel", "reasoning": "a", "thought": "x", "score": 2}),
        chunk({"content": "lo", "reasoning": "b", "thought": "y", "refusal": None, "score": {"s": 3}}),
        chunk({}, "stop"),
    )
    assert message == {
        "role": "assistant",
        "content": "Hello",
        "reasoning": "ab",
        "thought": "xy",
        "refusal": None,
        "score": {"s": 3},
    }


def test_tool_calls_are_put_together_by_index():
    """F4: interleaved pieces of several calls end up in their own call, in the order of their index."""
    message = message_of(
        chunk(
            {"content": None, "tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g"}}]}
        ),
        chunk(
            {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}
        ),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "function": {"arguments": '{"x'}},
                    {"index": 1, "function": {"arguments": "{"}},
                ]
            }
        ),
        chunk(
            {
                "tool_calls": [
                    {"index": 1, "id": "other", "type": "function", "function": {"name": "g", "arguments": "}"}}
                ]
            }
        ),
        chunk(
            {"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": '": 1}'}}]}, "tool_calls"
        ),
    )
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_calls_without_an_index_are_told_apart_by_id():
    """F4: servers that number no calls send each whole or under its id."""
    message = message_of(
        chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "1"}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "2"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "3"}}]}),
        chunk({"tool_calls": [{"id": "a", "function": {"arguments": "4"}}]}),
    )
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["14", "23"]


def test_function_call_audio_and_logprobs_are_put_together():
    """F4: what comes in pieces inside an object is put together there."""
    logprobs = [{"content": [{"token": token}], "refusal": None} for token in "ab"]
    first = {
        "index": 0,
        "delta": {"function_call": {"name": "f", "arguments": "{"}, "audio": {"id": "x", "data": "AA"}},
    }
    second = {"index": 0, "delta": {"function_call": {"arguments": "}"}, "audio": {"id": "x", "data": "BB"}}}
    aggregator = aggregated(
        chunk(choices=[first | {"logprobs": logprobs[0]}]), chunk(choices=[second | {"logprobs": logprobs[1]}])
    )
    choice = json.loads(aggregator.body())["choices"][0]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert choice["message"]["audio"] == {"id": "x", "data": "AABB"}
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}


def test_what_belongs_to_the_whole_answer_is_kept():
    """F1: id, time, model, fingerprint, tier, usage and what else the upstream says of an answer are kept."""
    body = json.loads(
        aggregated(
            event(b'{"id":"","created":0,"model":"","choices":[],"prompt_filter_results":[1]}'),
            chunk({"content": "x"}, service_tier="flex", system_fingerprint="fp", obfuscation="aaa", usage=None),
            chunk({}, "stop", service_tier="flex", system_fingerprint="fp", obfuscation="a"),
            chunk({}, None),
            chunk(usage={"total_tokens": 5}),
            chunk(id="", model="", service_tier=None),
            DONE,
        ).body()
    )
    assert body == {
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "prompt_filter_results": [1],
        "service_tier": "flex",
        "system_fingerprint": "fp",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"total_tokens": 5},
    }


@pytest.mark.parametrize(
    ("blocks", "complete", "failed"),
    [
        ([], False, False),
        ([KEEP_ALIVE, event(b"")], False, False),
        ([chunk({"content": "x"})], False, False),
        ([chunk({"content": "x"}), DONE], True, False),
        ([chunk({"content": "x"}, "stop")], True, False),
        ([chunk({"content": "x"}, "stop"), chunk(choices=[{"index": 1, "delta": {}}])], False, False),
        ([chunk({"content": "x"}, error=None), DONE], True, False),
        ([chunk({"content": "x"}), event(b'{"error": {"message": "boom"}}'), DONE], False, True),
        ([chunk({"content": "x"}), event(b'{"choices": [{"ind')], False, True),
        ([event(b"[]")], False, True),
        ([event(b'{"choices": {}}')], False, True),
        ([event(b'{"choices": [3]}')], False, True),
        ([event(b'{"choices": [{"delta": []}]}')], False, True),
        ([event(b'{"choices": [{"delta": {"tool_calls": [1]}}]}')], False, True),
        ([event(b'{"choices": [{"delta": {"content": "\xff"}, "finish_reason": "stop"}]}'), DONE], False, True),
        ([event(b"[" * 100_000)], False, True),
    ],
)
def test_only_a_whole_answer_is_complete(blocks, complete, failed):
    """H5: a cut, broken or failed stream is never taken for an answer."""
    aggregator = aggregated(*blocks)
    assert (aggregator.complete, aggregator.failed) == (complete, failed)


def test_the_message_for_the_transcript():
    """B2: the transcript gets the first choice's message, from either form of the answer."""
    raw = b'{"role": "assistant",  "content":"\\u0000 9007199254740993 \\ud83d","n":123456789012345678901234567890}'
    body = b'{"choices": [ {"index":0,"message":' + raw + b'}, {"message": {}} ]}'
    assert json.loads(assistant_message_of(body) or b"") == json.loads(raw)
    assert json.loads(aggregated(*as_events(body, include_usage=False)).assistant_message() or b"") == json.loads(raw)
    assert Aggregator().assistant_message() is None


def test_the_message_of_a_json_answer_keeps_its_bytes():
    """J4: a stored message is the upstream's own bytes: spacing, escapes and long integers."""
    raw = b'{ "content" : "\\u0000\\ud83d\\ude42 \xc3\xa9", "n": 12345678901234567890123, "e": [ ] }'
    assert assistant_message_of(b'{"choices":[{"message":' + raw + b"}]}") == raw


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b'{"choices":[{"message":null}]}', b"\xff"]
)
def test_no_message_in_what_is_no_answer(body):
    """B2: what holds no message adds nothing to a transcript."""
    assert assistant_message_of(body) is None


@pytest.mark.parametrize(
    "body",
    [b"x", b"[]", b"{}", b'{"choices":[1]}', b'{"choices":[{}]}', b'{"choices":[{"message":{"tool_calls":3}}]}'],
)
def test_what_is_no_answer_has_no_events(body):
    """H5: something that is no chat answer is refused before a stream opens."""
    with pytest.raises(ValueError, match=r"must be|no chat answer|Expecting"):
        as_events(body, include_usage=True)


def test_an_answer_is_streamed_piece_by_piece():
    """H1: the role comes first, then a chunk for each thing said and each call, then the reason to finish."""
    chunks = [
        json.loads(data_of(block) or b"") for block in as_events(json.dumps(ANSWER | {"x": 1}).encode(), False)[:-1]
    ]
    first = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == 0]
    assert [choice["delta"] for choice in first] == [
        {"role": "assistant", "refusal": None},
        {"content": MESSAGE["content"]},
        {"reasoning_content": "Because."},
        {"tool_calls": [{"index": 0, **MESSAGE["tool_calls"][0]}]},
        {"tool_calls": [{"index": 1, **MESSAGE["tool_calls"][1]}]},
        {},
    ]
    assert [choice["finish_reason"] for choice in first] == [None] * 5 + ["stop"]
    assert [chunk.get("x") for chunk in chunks] == [1] + [None] * (len(chunks) - 1)


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_is_streamed_when_asked_for(include_usage):
    """F4: the last chunk before `[DONE]` tells the usage, without choices, exactly when the request asked for it."""
    *blocks, done = as_events(json.dumps(ANSWER).encode(), include_usage)
    chunks = [json.loads(data_of(block) or b"") for block in blocks]
    assert is_done(done)
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [ANSWER["usage"]] * include_usage
    assert [chunk for chunk in chunks if not chunk["choices"]] == chunks[-1:] * include_usage
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks} == {
        ("chatcmpl-1", "m-1", ANSWER["created"])
    }
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_the_openai_client_reads_both_forms():
    """H1, F4: the real client finds the same text, calls, reason and usage in the events as in the JSON."""
    message = {name: value for name, value in MESSAGE.items() if name != "tool_calls"} | {
        "content": "Hello \U0001f642",
        "tool_calls": MESSAGE["tool_calls"][:1],
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    body = json.dumps(ANSWER | {"created": 7, "choices": [choice]}).encode()

    async def answer(request):
        if not (await request.json()).get("stream"):
            return web.Response(body=body, content_type="application/json")
        return web.Response(body=b"".join(as_events(body, include_usage=True)), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="x") as client:
        asked: dict[str, Any] = {"model": "m-1", "messages": [{"role": "user", "content": "hi"}]}
        plain = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            streamed = await stream.get_final_completion()
    completions: list[Any] = [plain, streamed]
    for completion in completions:
        said = completion.choices[0].message
        assert (completion.id, completion.usage.total_tokens) == ("chatcmpl-1", 9007199254740996)
        assert (said.content, said.reasoning_content) == ("Hello \U0001f642", "Because.")
        assert said.tool_calls[0].id == "call_1"
        assert said.tool_calls[0].function.arguments == '{"n": 9007199254740993}'
        assert completion.choices[0].finish_reason == "tool_calls"
