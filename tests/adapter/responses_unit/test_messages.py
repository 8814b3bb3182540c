"""Input items as the messages of a chat."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_adapter.responses.conversations import items_to_messages
from gateway_adapter.responses.input_items import input_items
from gateway_adapter.responses.messages import chat_messages
from gateway_adapter.responses.outputs import output_of
from gateway_adapter.responses.request import chat_body
from tests.adapter.responses_unit.shapes import MESSAGE, RESPONSE_ID, TOOL, TURN, UNTIMED, answer, parse


def messages_of(*items):
    """The items as decoded chat messages."""
    return [json.loads(message) for message in chat_messages(input_items([*items], "input"))]


def call_of(number):
    """A function call item."""
    return {"type": "function_call", "call_id": f"c{number}", "name": f"f{number}", "arguments": f'{{"n": {number}}}'}


def tool_call(number):
    """The same as a chat has it."""
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": f"f{number}", "arguments": f'{{"n": {number}}}'},
    }


def output_for(number):
    """The output of that call."""
    return {"type": "function_call_output", "call_id": f"c{number}", "output": str(number)}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}),
        ({"type": "message", "role": "system", "content": ""}, {"role": "system", "content": ""}),
        (
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "developer", "content": "Be brief."},
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "input_image", "image_url": "data:x", "detail": "low"},
                    {"type": "input_image", "image_url": "data:y"},
                    {"type": "input_image", "file_id": "file-1"},
                    {"type": "input_file", "file_data": "AA", "filename": "a.pdf"},
                    {"type": "input_file", "file_id": "file-2"},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:y"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "AA"}},
                    {"type": "file", "file": {"file_id": "file-2"}},
                ],
            },
        ),
        ({"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "Yes."}),
        (
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [1]}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "assistant", "content": None, "refusal": "No."},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
            {"role": "tool", "tool_call_id": "c", "content": "4"},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": ""},
            {"role": "tool", "tool_call_id": "c", "content": ""},
        ),
    ],
)
def test_an_item_is_one_message(item, message):
    """I1: messages with texts, images and files, refusals and outputs reach the upstream as chat has them."""
    assert messages_of(item) == [message]


def test_reasoning_is_left_out():
    """I1: items that a client sends back as it got them elsewhere are accepted; no chat takes reasoning."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert messages_of(reasoning, {"role": "user", "content": "Hi"}) == [{"role": "user", "content": "Hi"}]


def test_calls_in_a_row_are_one_message():
    """I1: parallel calls, and the text that came with them, are one assistant's message; their outputs follow it."""
    text = {"role": "assistant", "content": "Let me see."}
    between = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert messages_of(
        text, call_of(1), between, call_of(2), output_for(1), output_for(2), call_of(3), output_for(3)
    ) == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [tool_call(1), tool_call(2)]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call(3)]},
        {"role": "tool", "tool_call_id": "c3", "content": "3"},
    ]


def test_only_a_text_directly_before_belongs_to_the_calls():
    """I1: a text that something else followed stays a message of its own, and so does one after the calls."""
    first, hi, last = ({"role": role, "content": "x"} for role in ("assistant", "user", "assistant"))
    roles = [(message["role"], "tool_calls" in message) for message in messages_of(first, hi, call_of(1), last)]
    assert roles == [("assistant", False), ("user", False), ("assistant", True), ("assistant", False)]


def test_an_output_goes_back_in_as_the_message_it_was():
    """I1: a client that sends a response's output back as input tells the upstream what it said itself."""
    output = output_of(answer(MESSAGE), TURN)
    said = {name: value for name, value in MESSAGE.items() if name != "reasoning_content"}
    assert messages_of(*output.items) == [said]


def test_a_function_is_called_and_answered_over_two_requests():
    """I1: the second request's outputs follow the transcript with the calls, under the ids that the client was told."""
    first = parse(tools=[TOOL])
    output = output_of(answer(MESSAGE, "tool_calls"), TURN)
    transcript = [*chat_messages(first.input_items), output.message]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "4"}
        for item in output.items
        if item["type"] == "function_call"
    ]
    second = parse(tools=[TOOL], input=results, previous_response_id=RESPONSE_ID)
    body = json.loads(chat_body(second, [*transcript, *chat_messages(second.input_items)], stream=False))
    assert body["messages"] == [
        {"role": "user", "content": "Hi"},
        MESSAGE,
        {"role": "tool", "tool_call_id": "call_a", "content": "4"},
        {"role": "tool", "tool_call_id": "call_b", "content": "4"},
    ]


def test_normal_form_is_kept():
    """I1: items that were stored are read again as they are."""
    items = input_items([{"role": "user", "content": "Hi"}, call_of(1), output_for(1)], "input")
    assert input_items(items, "input") == items


TEXTS = st.text("a\x00é\U0001f642\ud83d", max_size=5)
PARTS = st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, TEXTS), max_size=3)


@UNTIMED
@given(content=TEXTS | PARTS, role=st.sampled_from(["user", "system", "developer", "assistant"]))
def test_texts_arrive_as_they_were_sent(content, role):
    """J4: whatever the text, a character is neither lost nor changed."""
    [message] = items_to_messages([{"role": role, "content": content}])
    told = json.loads(message)["content"]
    expected = content if isinstance(content, str) else "".join(part["text"] for part in content)
    assert (told if isinstance(told, str) else "".join(part["text"] for part in told)) == expected
