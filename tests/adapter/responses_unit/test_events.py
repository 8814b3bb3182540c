"""The events of a response, made of a chat stream."""

import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway_adapter.completions import as_events
from gateway_adapter.responses.objects import response_object
from gateway_adapter.responses.outputs import output_of
from gateway_adapter.sse import with_id
from gateway_adapter.sse import DONE, KEEP_ALIVE, EventSplitter, data_of, event
from tests.adapter.responses_unit.shapes import (
    CREATED_AT,
    RESPONSE_ID,
    TURN,
    UNTIMED,
    USAGE,
    accepted,
    answer,
    call,
    chunk,
    events_of,
    parse,
    streamed,
    told,
)  # fmt: skip

ADAPTER: TypeAdapter = TypeAdapter(ResponseStreamEvent)


def kinds(events):
    """Types, without what they all begin with."""
    return [fields["type"].removeprefix("response.") for fields in events]


def only(events, kind):
    """The events of one type."""
    return [fields for fields in events if fields["type"] == f"response.{kind}"]


def test_a_text_is_told_as_it_comes():
    """H1, I1: the documented order of events, each delta at once, numbered from 0 without gaps."""
    events, output, response = streamed(
        chunk({"role": "assistant", "content": ""}),
        KEEP_ALIVE,
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        chunk(usage=USAGE),
    )
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [fields["sequence_number"] for fields in events] == [*range(10)]
    assert [fields["delta"] for fields in only(events, "output_text.delta")] == ["Hel", "lo"]
    assert only(events, "output_text.done")[0]["text"] == "Hello"
    assert events[-1]["response"] == response
    assert response["output"] == output.items == output_of(answer({"content": "Hello"}), TURN).items
    assert (response["usage"]["total_tokens"], response["completed_at"]) == (8, CREATED_AT + 1)
    assert events[0]["response"]["status"] == "in_progress"
    assert json.loads(output.message) == {"role": "assistant", "content": "Hello"}


def test_calls_are_told_as_they_come():
    """I1: text, then calls, each with its arguments in pieces; their outputs can be sent under the call ids told."""
    events, output, _ = streamed(
        chunk({"content": "Let me see."}),
        chunk(call(0, "call_a", "add", "")),
        chunk(call(0, arguments='{"n": ')),
        chunk(call(0, arguments="1}")),
        chunk(call(1, "call_b", "now", "{}")),
        chunk({}, "tool_calls"),
    )
    assert [(fields["item"]["type"], fields["output_index"]) for fields in only(events, "output_item.added")] == [
        *(("message", 0), ("function_call", 1), ("function_call", 2))
    ]
    deltas = only(events, "function_call_arguments.delta")
    assert [(fields["item_id"], fields["delta"]) for fields in deltas] == [
        *((f"fc_{TURN}_1", '{"n": '), (f"fc_{TURN}_1", "1}"), (f"fc_{TURN}_2", "{}"))
    ]
    assert [fields["arguments"] for fields in only(events, "function_call_arguments.done")] == ['{"n": 1}', "{}"]
    assert [fields["item"] for fields in only(events, "output_item.done")] == output.items
    assert [item["call_id"] for item in output.items[1:]] == ["call_a", "call_b"]


def test_mixed_pieces_find_their_item():
    """I1: pieces of the text and of several calls, in any order, are told under the item they belong to."""
    events, output, _ = streamed(
        chunk(call(1, "call_b", "g", "[")),
        chunk({"content": "x"} | call(0, "call_a", "f", "{")),
        chunk(call(1, arguments="]")),
        chunk({"content": "y"}),
        chunk(call(0, arguments="}")),
        chunk({}, "tool_calls"),
    )
    assert [item["type"] for item in output.items] == ["function_call", "message", "function_call"]
    assert [item.get("arguments") for item in output.items] == ["[]", None, "{}"]
    assert output.items[1]["content"][0]["text"] == "xy"
    assert [fields["output_index"] for fields in only(events, "output_item.done")] == [0, 1, 2]
    kept = json.loads(output.message)["tool_calls"]
    assert [one["id"] for one in kept] == ["call_a", "call_b"]  # the order in the chat stays the upstream's


def test_calls_without_number_or_id():
    """I1: servers that number no calls, or give no ids: what the client is told is what the transcript has."""
    _, output, _ = streamed(
        chunk(call(None, "x", "f", "1")),
        chunk(call(None, "y", "g", "2")),
        chunk(call(None, None, None, "3")),
        chunk({}, "tool_calls"),
    )
    assert [(item["call_id"], item["arguments"]) for item in output.items] == [("x", "1"), ("y", "23")]
    _, output, _ = streamed(chunk(call(3, None, "f", "{}")), chunk({}, "tool_calls"))
    assert output.items[0]["call_id"] == json.loads(output.message)["tool_calls"][0]["id"] == f"call_{TURN}_0"


def test_a_call_is_told_once_it_has_a_name():
    """I1: arguments before the name are told after it, and a call that never has one is told at the end."""
    events, output, _ = streamed(
        chunk(call(0, "a", None, "{")),
        chunk(call(0, None, "f", "}")),
        chunk(call(1, "b", None, "1")),
        chunk({}, "stop"),
    )
    assert [fields["delta"] for fields in only(events, "function_call_arguments.delta")] == ["{}", "1"]
    assert [item["name"] for item in output.items] == ["f", ""]


def test_a_refusal_is_told_as_it_comes():
    """I1: refusals have events of their own."""
    events, output, _ = streamed(chunk({"refusal": "I "}), chunk({"refusal": "won't."}), chunk({}, "stop"))
    assert kinds(events)[3:8] == [
        *("content_part.added", "refusal.delta", "refusal.delta", "refusal.done", "content_part.done")
    ]
    assert output.items[0]["content"] == [{"type": "refusal", "refusal": "I won't."}]


def test_an_answer_that_says_nothing_is_an_empty_message():
    """I1: the stream of nothing ends like every other, with a message."""
    for blocks in ([], [chunk({"role": "assistant"}), chunk({}, "stop")]):
        events, output, _ = streamed(*blocks)
        assert kinds(events)[2:] == [
            *("output_item.added", "content_part.added", "output_text.done", "content_part.done"),
            *("output_item.done", "completed"),
        ]
        assert json.loads(output.message)["role"] == "assistant"


def test_what_broke_off_ends_incomplete():
    """I1: the last event says why the answer was cut off."""
    events, output, response = streamed(chunk({"content": "Hel"}), chunk({}, "length"))
    assert (events[-1]["type"], output.status) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_log_probabilities_come_with_their_text():
    """I1: told with each delta, and all of them with the text that is done; some servers tell them at the end."""
    tokens = [{"token": token, "logprob": -1, "bytes": [1], "top_logprobs": []} for token in "abc"]
    choices = [
        {"index": 0, "delta": {"content": token["token"]}, "logprobs": {"content": [token]}} for token in tokens[:2]
    ]
    choices.append({"index": 0, "delta": {}, "logprobs": {"content": tokens[2:]}, "finish_reason": "stop"})
    events, output, _ = streamed(*(chunk(choices=[choice]) for choice in choices))
    assert [fields["logprobs"] for fields in only(events, "output_text.delta")] == [[tokens[0]], [tokens[1]]]
    assert only(events, "output_text.done")[0]["logprobs"] == output.items[0]["content"][0]["logprobs"] == tokens


def test_only_the_first_choice_counts():
    """I1: a response has one answer."""
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    _, output, _ = streamed(chunk({"content": "yes"}), chunk(choices=[other]), chunk({}, "stop"))
    assert (output.items[0]["content"][0]["text"], output.status) == ("yes", "completed")


@pytest.mark.parametrize(
    "block",
    [
        event(b'{"error":{"message":"x"}}'),
        event(b"nonsense"),
        event(b"[]"),
        event(b'{"choices":[1]}'),
        event(b'{"choices":[{"index":"a"}]}'),
        event(b'{"choices":[{"delta":1}]}'),
        event(b'{"choices":[{"delta":{"tool_calls":[1]}}]}'),
    ],
)
def test_a_stream_that_is_no_answer_has_failed(block):
    """H5: nothing is told of it, nothing later mends it."""
    events = events_of()
    assert (events.add(block), events.add(chunk({"content": "x"}, "stop")), events.add(DONE)) == ([], [], [])
    assert (events.failed, events.complete) == (True, False)


def test_an_answer_is_complete_when_it_has_ended():
    """H3: as for chat, at the reason why it ended or at the last event, not before."""
    events = events_of()
    events.add(chunk({"content": "x"}))
    assert (events.complete, events.failed) == (False, False)
    events.add(chunk({}, "stop"))
    assert events.complete


@pytest.mark.parametrize("ending", ["fail", "cancelled"])
def test_a_failure_is_the_last_event(ending):
    """H5, G8: one last event, numbered on, with the response that failed or was cancelled."""
    events = events_of(conversation_id="ses_1")
    sent = events.start() + events.add(chunk({"content": "x"}))
    [last] = events.fail("server_error", "The gateway failed.") if ending == "fail" else events.cancelled()
    fields = told(last)
    assert (fields["type"], fields["sequence_number"]) == ("response.failed", len(sent))
    assert fields["response"]["status"] == {"fail": "failed", "cancelled": "cancelled"}[ending]
    assert fields["response"]["error"]["message"].endswith(".")
    assert fields["response"]["conversation"] == {"id": "ses_1"}
    [elsewhere] = getattr(events_of(conversation_id="ses_1", first_number=len(sent)), ending)(
        *(("server_error", "The gateway failed.") if ending == "fail" else ())
    )
    assert elsewhere == last


@pytest.mark.parametrize("chat_answer", [b"", b"{}", b'{"choices":[]}', answer([]), answer({"tool_calls": 5})])
def test_json_that_is_no_answer_has_failed(chat_answer):
    """H5: also an upstream that was asked for a stream and answered something else as JSON."""
    events = events_of()
    assert (events.whole(chat_answer), events.failed) == ([], True)


TEXT = st.text("ab\x00\n\r é\U0001f642\ud83d", max_size=8)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": TEXT.filter(bool), "arguments": TEXT})},
        optional={"id": st.none() | st.text("xyz", min_size=1, max_size=2), "type": st.just("function")},
    ),
    max_size=3,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXT},
    optional={"refusal": st.none() | TEXT, "tool_calls": st.none() | CALLS, "reasoning_content": TEXT},
)
REASONS = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


@UNTIMED
@given(message=MESSAGES, reason=REASONS, usage=st.none() | st.just(USAGE))
def test_json_and_stream_come_to_the_same(message, reason, usage):
    """F4, I1: an answer has the same items, ids, usage and status whether its upstream streamed it or not, and the
    client's own models and stream reader agree with every event of it."""
    body = answer(message, reason, **({"usage": usage} if usage else {}))
    expected = output_of(body, TURN)
    events = events_of()
    sent = events.start() + events.whole(body)
    assert events.complete
    last, output, response = events.finish()
    assert (output.items, output.usage, output.incomplete) == (expected.items, expected.usage, expected.incomplete)
    if message.get("tool_calls") or "tool_calls" not in message:
        assert json.loads(output.message) == json.loads(expected.message)
    assert response == response_object(
        parse(), response_id=RESPONSE_ID, created_at=CREATED_AT, status=expected.status, output=expected
    )
    fields = [told(block) for block in sent + last]
    assert [one["sequence_number"] for one in fields] == [*range(len(fields))]
    _read_by_the_client(fields, response)


def _read_by_the_client(fields, response):
    state = ResponseStreamState(input_tools=[], text_format=omit)
    deltas: dict[tuple, str] = defaultdict(str)
    for one in fields:
        state.handle_event(ADAPTER.validate_python(one))
        if "delta" in one:
            deltas[one["output_index"], one.get("content_index")] += one["delta"]
    for index, item in enumerate(accepted(Response, response)["output"]):
        for part, content in enumerate(item.get("content", [])):
            assert deltas[index, part] == content.get("text", content.get("refusal"))
        assert deltas[index, None] == item.get("arguments", "")


@UNTIMED
@given(message=MESSAGES, cut=st.integers(1, 4), reason=REASONS)
def test_pieces_of_any_size_come_to_the_same(message, cut, reason):
    """H2, I1: however the upstream cuts its answer, the response is the same."""
    body = answer(message, reason)
    blocks = [piece for block in as_events(body, include_usage=False) for piece in _cut(block, cut)]
    _, output, _ = streamed(*blocks)
    assert output.items == output_of(body, TURN).items


def _cut(block, size):
    """The same chunk as several, each with at most so many characters of text or arguments."""
    data = data_of(block) or b""
    fields = json.loads(data) if data != b"[DONE]" else {"choices": []}
    delta = fields["choices"][0]["delta"] if fields["choices"] else {}
    for name in ("content", "refusal"):
        if isinstance(delta.get(name), str):
            return [chunk({name: "".join(text)}) for text in _batches(delta[name], size)]
    if "tool_calls" not in delta:
        return [block]
    [one] = delta["tool_calls"]
    function = {"name": one["function"]["name"], "arguments": ""}
    first = chunk({"tool_calls": [{**one, "function": function}]})
    rest = _batches(one["function"]["arguments"], size)
    return [first, *(chunk(call(one["index"], arguments="".join(text))) for text in rest)]


def _batches(text, size):
    pieces = iter(text)
    return list(iter(lambda: tuple(itertools.islice(pieces, size)), ()))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"data: x\n\n", b"id: 7\ndata: x\n\n"),
        (b"event: a\r\ndata: x\r\n\r\n", b"id: 7\nevent: a\r\ndata: x\r\n\r\n"),
        (b"\r\n\n\xef\xbb\xbf", b"\r\n\nid: 7\n\xef\xbb\xbf"),  # no mark of a stream's beginning: part of a name
        (b"\xef\xbb\xbfdata: x\n\n", b"\xef\xbb\xbfid: 7\ndata: x\n\n"),
        (b"\n\ndata: x\n\n", b"\n\nid: 7\ndata: x\n\n"),
        (b"id: 1\ndata: id: 2\nid\rid:3\r\n\n", b"id: 7\ndata: id: 2\n\n"),
        (b": id: 1\nidle: 2\n\n", b"id: 7\n: id: 1\nidle: 2\n\n"),
    ],
)
def test_an_event_gets_its_number(block, expected):
    """H2: every event of a resumable stream has one id, the gateway's, in front; nothing else of it changes."""
    assert with_id(block, 7) == expected


LINES = st.sampled_from(
    [b"data: x", b"data", b"event: e", b"id: 9", b"id", b": note", b"retry: 5", b"idx: 1", b"data:id: 1"]
)


@UNTIMED
@given(
    lines=st.lists(LINES, min_size=1, max_size=5), end=st.sampled_from([b"\n", b"\r\n", b"\r"]), number=st.integers(0)
)
def test_a_numbered_event_is_one_event_with_one_id(lines, end, number):
    """H2: for any event, in any style of line ends: one id, the same data, still one event."""
    block = end.join(lines) + end + end
    numbered = with_id(block, number)
    splitter = EventSplitter()
    [event_itself] = splitter.feed(numbered)
    assert (event_itself + splitter.rest(), splitter.rest().strip()) == (numbered, b"")
    assert data_of(numbered) == data_of(block)
    ids = [line for line in numbered.splitlines() if line.partition(b":")[0] == b"id"]
    assert ids == [b"id: %d" % number]
    assert [line for line in numbered.splitlines() if line not in ids] == [
        line for line in block.splitlines() if line.partition(b":")[0] != b"id"
    ]
