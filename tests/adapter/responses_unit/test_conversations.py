"""A transcript seen as the items of a conversation."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.conversations import Conversation, ConversationItem
from pydantic import TypeAdapter

from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.responses.conversations import conversation_object, item_objects, items_to_messages
from tests.adapter.responses_unit.shapes import CREATED_AT, MESSAGE, UNTIMED, accepted

ITEM: TypeAdapter = TypeAdapter(ConversationItem)


def items_of(*messages: Any, conversation_id: str = "ses_abc") -> list[dict[str, Any]]:
    """The items of these chat messages, after the client's model has taken each."""
    items = item_objects([json.dumps(message).encode() for message in messages], conversation_id)
    for item in items:
        ITEM.validate_python(item)
    return items


def test_a_conversation():
    """I1: the object that clients know, with its metadata."""
    conversation = accepted(Conversation, conversation_object("ses_1", CREATED_AT, {"a": "b"}))
    expected = {"id": "ses_1", "object": "conversation", "created_at": CREATED_AT, "metadata": {"a": "b"}}
    assert conversation == expected
    assert conversation_object("ses_1", CREATED_AT)["metadata"] == {}


def test_a_transcript_is_items():
    """I1: messages, function calls and their outputs, in order, each under the id of its place."""
    user = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    items = items_of(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": user},
        MESSAGE,
        {"role": "tool", "tool_call_id": "call_a", "content": "4"},
        {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "5"}]},
        {"role": "assistant", "content": None, "refusal": "No."},
    )
    assert [item["id"] for item in items] == [f"item_abc_{number}" for number in range(8)]
    assert [item["type"] for item in items] == [
        *("message", "message", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert items[1]["content"] == [
        {"type": "input_text", "text": "See"},
        {"type": "input_image", "detail": "auto", "file_id": None, "image_url": "data:x"},
    ]
    assert items[2]["content"][0]["text"] == MESSAGE["content"]
    assert (items[3]["call_id"], items[3]["arguments"]) == ("call_a", '{"n": 9007199254740993}')
    assert (items[5]["call_id"], items[5]["output"]) == ("call_a", "4")
    assert items[6]["output"] == [{"type": "input_text", "text": "5"}]
    assert items[7]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_what_items_have_no_word_for_is_shown_all_the_same():
    """I1: a conversation may hold what came by chat: audio, files, calls of custom tools, roles of old."""
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    file = {"type": "file", "file": {"file_id": "f", "x": 1}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    shown = items_of(
        {"role": "user", "content": [audio, file]},
        {"role": "assistant", "tool_calls": [custom]},
        {"role": "function", "name": "f", "content": "x"},
        conversation_id="plain",
    )
    assert json.loads(shown[0]["content"][0]["text"]) == audio
    assert shown[0]["content"][1] == {"type": "input_file", "file_id": "f"}
    expected = {"id": "item_plain_1", "type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}
    assert shown[1] == expected
    assert (shown[2]["role"], shown[2]["content"][0]["text"]) == ("unknown", "x")


def test_items_go_in_and_come_out():
    """I1: what a client puts into a conversation is what it finds there."""
    sent: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    found = item_objects(items_to_messages(sent), "ses_abc")
    assert [{name: item[name] for name in one} for item, one in zip(found, sent, strict=True)] == sent


@pytest.mark.parametrize("items", [5, {"a": 1}, [5], [{"type": "item_reference", "id": "x"}]])
def test_what_is_no_item_is_refused(items):
    """I1: 400, named by its place."""
    with pytest.raises(InvalidRequest) as refusal:
        items_to_messages(items)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_items")


FIELDS = "role content type text refusal tool_calls id function name arguments custom"
KINDS = "user assistant tool system text refusal image_url file x"
NAMES = st.sampled_from(FIELDS.split())
WORDS = st.sampled_from(KINDS.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=10,
)


@UNTIMED
@given(message=st.dictionaries(NAMES, VALUES, max_size=6) | VALUES)
def test_any_message_can_be_shown(message):
    """I1: a transcript holds what clients of the chat endpoint sent: none of it makes the list fail."""
    items_of(message)
