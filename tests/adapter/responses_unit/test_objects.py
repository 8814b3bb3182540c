"""A chat answer as a response: its output, its usage, the whole object."""

import json

import pytest
from openai.types.responses import Response, ResponseItem, ResponseOutputItem, ResponseUsage

from gateway_adapter.responses.objects import input_item_list, response_object
from gateway_adapter.responses.outputs import output_of
from tests.adapter.responses_unit.shapes import (
    CREATED_AT,
    MESSAGE,
    RESPONSE_ID,
    TOOL,
    TURN,
    USAGE,
    accepted,
    answer,
    parse,
)  # fmt: skip


def response_of(request=None, **more):
    """The response object, after the client's model has taken it."""
    more = {"status": "completed"} | more
    return accepted(
        Response, response_object(request or parse(), response_id=RESPONSE_ID, created_at=CREATED_AT, **more)
    )


def test_text_and_calls_are_items():
    """I1: the message and each function call are items with ids of the response; call ids are the upstream's."""
    output = output_of(answer(MESSAGE, "tool_calls", usage=USAGE), TURN)
    for item in output.items:
        accepted(ResponseOutputItem, item)
    text = {"type": "output_text", "text": MESSAGE["content"], "annotations": [], "logprobs": []}
    call = {"type": "function_call", "status": "completed"}
    assert output.items == [
        {"id": f"msg_{TURN}_0", "type": "message", "status": "completed", "role": "assistant", "content": [text]},
        call | {"id": f"fc_{TURN}_1", "call_id": "call_a", "name": "add", "arguments": '{"n": 9007199254740993}'},
        call | {"id": f"fc_{TURN}_2", "call_id": "call_b", "name": "now", "arguments": ""},
    ]
    assert (output.incomplete, output.status) == (None, "completed")


def test_the_transcript_gets_the_upstreams_own_message():
    """H7: the assistant's message is kept byte for byte, also what a response has no place for."""
    raw = b'{"role": "assistant",  "content":"\\u00fc", "x":[{}, 9007199254740993]}'
    assert output_of(b'{"choices":[{"message": ' + raw + b"}]}", TURN).message == raw


@pytest.mark.parametrize("given", [[None, ""], ["x", "x"], [5, 5]])
def test_calls_without_an_id_of_their_own_get_one(given):
    """I1: calls with no id, or the same one twice, get one: the transcript has what the client was told."""
    function = {"name": "f", "arguments": {"n": 1}}
    calls = [{"id": call_id, "function": function} for call_id in given]
    output = output_of(answer({"role": "assistant", "content": None, "tool_calls": calls}), TURN)
    expected = ["x" if given[0] == "x" else f"call_{TURN}_0", f"call_{TURN}_1"]
    assert [(item["call_id"], item["arguments"]) for item in output.items] == [(one, '{"n":1}') for one in expected]
    kept = json.loads(output.message)["tool_calls"]
    assert kept == [{"id": call_id, "function": function} for call_id in expected]


def test_a_refusal_is_a_part_of_the_message():
    """I1: the model's refusal is told as such."""
    [item] = output_of(answer({"role": "assistant", "content": None, "refusal": "No."}), TURN).items
    assert accepted(ResponseOutputItem, item)["content"] == [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "thinking", "thinking": "hm"}]])
def test_an_answer_that_says_nothing_is_an_empty_message(content):
    """I1: clients that wait for a message get one."""
    [item] = output_of(answer({"role": "assistant", "content": content}), TURN).items
    assert [part["text"] for part in accepted(ResponseOutputItem, item)["content"]] == [""]


def test_content_in_parts_is_its_text():
    """I1: servers whose content is a list of parts are understood."""
    content = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [item] = output_of(answer({"role": "assistant", "content": content}), TURN).items
    assert accepted(ResponseOutputItem, item)["content"][0]["text"] == "ab"


@pytest.mark.parametrize(
    ("reason", "expected"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_what_broke_off_is_incomplete(reason, expected):
    """I1: an answer that was cut off says so, and why; the item that was being made is incomplete."""
    output = output_of(answer(MESSAGE, reason), TURN)
    assert [item["status"] for item in output.items] == ["completed", "completed", "incomplete"]
    response = response_of(status=output.status, output=output)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": expected})


def test_usage_is_told_in_the_words_of_a_response():
    """I1: token counts of any size, with what was cached and what was reasoned."""
    usage = output_of(answer(MESSAGE, usage=USAGE | {"total_tokens": 9007199254740993}), TURN).usage
    assert accepted(ResponseUsage, usage) == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 9007199254740993,
    }


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "prompt_tokens_details": []}, {"total_tokens": True}])
def test_counts_that_are_missing_are_none(usage):
    """I1: an upstream that counts nothing, or badly, gives no reason to fail."""
    told = accepted(ResponseUsage, output_of(answer(MESSAGE, usage=usage), TURN).usage)
    assert (told["total_tokens"], told["input_tokens"]) == (0, 0)
    assert output_of(answer(MESSAGE), TURN).usage is None
    summed = output_of(answer(MESSAGE, usage={"prompt_tokens": 2, "completion_tokens": 3}), TURN).usage
    assert accepted(ResponseUsage, summed)["total_tokens"] == 5


def test_log_probabilities_are_told():
    """I1: those that the upstream gives for the text; what is no number is left out."""
    top = {"token": "H", "logprob": -0.5, "bytes": None}
    tokens = [top | {"top_logprobs": [top, {"token": 1}]}, {"token": "i", "logprob": None}, {"token": "x"}, 5]
    choice = {"message": {"role": "assistant", "content": "H"}, "logprobs": {"content": tokens}}
    [item] = output_of(json.dumps({"choices": [choice]}).encode(), TURN).items
    told = {"token": "H", "bytes": [], "logprob": -0.5}
    assert accepted(ResponseOutputItem, item)["content"][0]["logprobs"] == [told | {"top_logprobs": [told]}]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b'{"choices":{"0":1}}', b'{"choices":[{"message":[]}]}']
    + [answer({"tool_calls": {}} | MESSAGE | {"tool_calls": calls}) for calls in ({"a": 1}, [1], "x")],
)
def test_what_is_no_answer_is_an_error(body):
    """H5: an upstream that answers something else has failed."""
    with pytest.raises(ValueError, match=r"no chat answer|must be a list"):
        output_of(body, TURN)


def test_a_response_has_all_of_its_members():
    """I1: the clients' model takes the object and finds everything it knows, except what only OpenAI's servers have."""
    response = response_of()
    elsewhere = {
        *("access_programs", "image", "input_transformations", "moderation", "prompt", "prompt_cache_diagnostics"),
        *("prompt_cache_options", "prompt_cache_retention", "tool_usage"),
    }
    assert {*Response.model_fields} - {*response} == elsewhere
    assert (response["metadata"], response["output"], response["error"], response["usage"]) == ({}, [], None, None)
    assert (response["store"], response["background"], response["conversation"]) == (True, False, None)


def test_a_response_tells_what_was_asked():
    """I1: its settings, its chain and its conversation are in it."""
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 20,
        "metadata": {"a": "ä"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_x",
        "reasoning": {"effort": "low", "summary": None},
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "add"},
        "tools": [TOOL, {"type": "function", "name": "now", "description": None, "parameters": None, "strict": None}],
        "top_p": 0.9,
        "truncation": "auto",
        "user": "u",
        "store": False,
    }
    response = response_of(parse(**asked), conversation_id="ses_1", completed_at=CREATED_AT + 1)
    assert {name: response[name] for name in asked} == asked
    assert (response["conversation"], response["completed_at"]) == ({"id": "ses_1"}, CREATED_AT + 1)


@pytest.mark.parametrize("status", ["queued", "in_progress", "completed", "failed", "cancelled"])
def test_every_state_has_the_same_members(status):
    """I1: a client may poll with one model, from the first state to the last."""
    error = {"code": "server_error", "message": "The gateway failed."} if status == "failed" else None
    response = response_of(status=status, error=error)
    assert (response["status"], response["error"], [*response]) == (status, error, [*response_of()])


def test_input_items_have_ids_of_their_response():
    """I1: what was asked can be listed, each item under an id that stays."""
    sent = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]},
        {"role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    items = input_item_list(parse(input=sent).input_items, RESPONSE_ID)
    assert [item["id"] for item in items] == [f"item_{TURN}_{number}" for number in range(4)]
    assert [accepted(ResponseItem, item)["type"] for item in items] == [
        *("message", "message", "function_call", "function_call_output")
    ]
