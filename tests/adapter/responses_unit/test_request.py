"""What a Responses request may say, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.responses.request import chat_body, parse_responses
from tests.adapter.responses_unit.shapes import TOOL, UNTIMED, parse


def body_of(request, messages=(), stream=False):
    """The chat body, decoded."""
    return json.loads(chat_body(request, [*messages], stream=stream))


def test_a_short_request_has_the_defaults_of_the_openai_api():
    """I1: a model and a text are enough; it is stored, not streamed and not in the background."""
    request = parse()
    assert (request.model, request.store, request.stream, request.background) == ("m", True, False, False)
    assert (request.previous_response_id, request.conversation, request.metadata) == (None, None, None)
    content = [{"type": "input_text", "text": "Hi"}]
    assert request.input_items == [{"type": "message", "role": "user", "content": content}]


def test_what_is_sent_is_read():
    """I1: store, stream, background, metadata, instructions and both ways of naming a conversation."""
    request = parse(store=True, stream=True, background=True, metadata={"a": "ä"}, instructions="Be brief.")
    assert (request.store, request.stream, request.background) == (True, True, True)
    assert (request.metadata, request.instructions) == ({"a": "ä"}, "Be brief.")
    assert parse(previous_response_id="resp_x").previous_response_id == "resp_x"
    assert parse(conversation="c 1").conversation == parse(conversation={"id": "c 1"}).conversation == "c 1"


@pytest.mark.parametrize("nothing", [None, [], [{"type": "reasoning", "id": "r", "summary": []}]])
def test_a_conversation_may_hold_all_of_the_input(nothing):
    """I1: without new input the conversation or the chain is asked to go on; without those there is nothing to ask."""
    assert parse(input=nothing, conversation="c").input_items == []
    assert parse(input=nothing, previous_response_id="resp_x").input_items == []
    with pytest.raises(InvalidRequest) as refusal:
        parse(input=nothing)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (400, "invalid_input", "input")


def test_the_canonical_body_leaves_the_form_out():
    """F2: the same question has the same canonical body, in any order of its members, as JSON or stream."""
    plain = parse_responses(b'{"model":"m","input":"Hi","top_p":1}')
    streamed = parse_responses(b'{"stream":true, "top_p":1,"stream_options":{},"input":"Hi","model":"m"}')
    assert plain.canonical == streamed.canonical
    assert plain.canonical != parse(top_p=0.5).canonical


def test_options_go_to_the_upstream_in_its_own_words():
    """I1: what a chat completion knows by another name is renamed, the rest passes as it is."""
    schema = {"type": "object", "properties": {}}
    request = parse(
        instructions="Be brief.",
        temperature=0.5,
        top_p=1,
        max_output_tokens=20,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}, "verbosity": "low"},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="flex",
        top_logprobs=3,
        truncation="auto",
        store=False,
        metadata={"a": "b"},
    )
    function = {name: value for name, value in TOOL.items() if name != "type"}
    assert body_of(request, [b'{"role":"user","content":"Hi"}'], stream=True) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "top_p": 1,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "max_completion_tokens": 20,
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}},
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_nulls_and_defaults_are_left_to_the_upstream():
    """I1: a chat upstream refuses choices without tools, and a null is not a value the client set."""
    names = [
        *("temperature", "top_p", "max_output_tokens", "reasoning", "text", "tools", "user", "prompt_cache_key"),
        *("top_logprobs", "truncation", "service_tier", "include", "instructions", "metadata", "conversation"),
        "stream_options",
    ]
    request = parse(**dict.fromkeys(names), parallel_tool_calls=True, tool_choice="auto")
    assert body_of(request) == {"model": "m", "messages": []}
    spare = parse(
        tools=[], text={"format": {"type": "text"}}, top_logprobs=0, reasoning={"effort": None}, instructions=""
    )
    assert body_of(spare) == body_of(request)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tool_choice": "required", "tools": [TOOL]}, {"tool_choice": "required"}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),  # the upstream is to refuse it, not to ignore it
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "add"}],
                },
                "tools": [TOOL],
            },
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "add"}}],
                    },
                }
            },
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}, {"logprobs": True}),
        ({"tools": [{"type": "function", "name": "f", "parameters": None, "strict": None}]}, {}),
    ],
)
def test_choices_and_formats_are_translated(fields, expected):
    """I1: every choice of tools and form of the answer that a chat knows reaches it."""
    body = body_of(parse(**fields))
    assert {name: body[name] for name in expected} == expected


def test_values_for_the_upstream_keep_their_bytes():
    """J4: a schema passes byte for byte, numbers that no float can hold included."""
    schema = b'{"maximum":9007199254740993,"multipleOf":0.10000000000000000555,"x":[],"y":{},"e":"\\u00fc"}'
    raw = b'{"model":"m","input":"Hi","temperature":1.0000000000000000001,"tools":[{"type":"function","name":"f",'
    raw += (
        b'"parameters":' + schema + b'}],"text":{"format":{"type":"json_schema","name":"s","schema":' + schema + b"}}}"
    )
    body = chat_body(parse_responses(raw), [], stream=False)
    assert body.count(schema) == 2
    assert b'"temperature":1.0000000000000000001' in body


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": ""}, "invalid_model", "model"),
        ({"model": None}, "invalid_model", "model"),
        ({"input": 5}, "invalid_input", "input"),
        ({"input": ["x"]}, "invalid_input", "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_input", "input[0]"),
        ({"input": [{"id": "x"}]}, "invalid_input", "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "invalid_input", "input[0].type"),
        ({"input": [{"type": []}]}, "invalid_input", "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_input", "input[0].role"),
        ({"input": [{"role": "user"}]}, "invalid_input", "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "invalid_input", None),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "invalid_input", None),
        ({"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "invalid_input", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "invalid_input", None),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}]}, "invalid_input", None),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "filename": "f"}]}]}, "invalid_input", None),
        ({"input": [{"role": "assistant", "content": [{"type": "input_image"}]}]}, "invalid_input", None),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": ""}]}, "invalid_input", None),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}, "invalid_input", None),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "invalid_input", "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "invalid_input", "input[0].output"),
        (
            {
                "input": [
                    {
                        "type": "function_call_output",
                        "call_id": "c",
                        "output": [{"type": "input_image", "image_url": "u"}],
                    }
                ]
            },
            "invalid_input",
            "input[0].output",
        ),
        ({"store": 1}, "invalid_store", "store"),
        ({"stream": "yes"}, "invalid_stream", "stream"),
        ({"stream_options": 1}, "invalid_stream_options", "stream_options"),
        ({"background": True, "store": False}, "invalid_background", "background"),
        ({"metadata": {"a": 1}}, "invalid_metadata", "metadata"),
        ({"metadata": {"a": "x" * 513}}, "invalid_metadata", "metadata"),
        ({"metadata": {"x" * 65: ""}}, "invalid_metadata", "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_metadata", "metadata"),
        ({"instructions": ["x"]}, "invalid_instructions", "instructions"),
        ({"previous_response_id": 5}, "invalid_previous_response_id", "previous_response_id"),
        ({"previous_response_id": ""}, "invalid_previous_response_id", "previous_response_id"),
        ({"previous_response_id": "\ud83d"}, "invalid_previous_response_id", "previous_response_id"),
        ({"conversation": {"id": None}}, "invalid_conversation", "conversation.id"),
        ({"conversation": []}, "invalid_conversation", "conversation"),
        ({"conversation": "a\nb"}, "invalid_session_id", None),
        ({"conversation": "c", "previous_response_id": "resp_x"}, "conflicting_session", "conversation"),
        ({"tools": [{"type": "web_search"}]}, "invalid_tools", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "invalid_tools", "tools[0].name"),
        ({"tools": [TOOL | {"parameters": 1}]}, "invalid_tools", "tools[0].parameters"),
        ({"tools": [TOOL | {"strict": "x"}]}, "invalid_tools", "tools[0].strict"),
        ({"tools": {}}, "invalid_tools", "tools"),
        ({"tool_choice": "maybe"}, "invalid_tool_choice", "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "invalid_tool_choice", "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "invalid_tool_choice", "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [1]}}, "invalid_tool_choice", "tool_choice.tools[0].type"),
        ({"temperature": "hot"}, "invalid_temperature", "temperature"),
        ({"top_p": True}, "invalid_top_p", "top_p"),
        ({"max_output_tokens": 0}, "invalid_max_output_tokens", "max_output_tokens"),
        ({"max_output_tokens": True}, "invalid_max_output_tokens", "max_output_tokens"),
        ({"top_logprobs": 1.5}, "invalid_top_logprobs", "top_logprobs"),
        ({"reasoning": "high"}, "invalid_reasoning", "reasoning"),
        ({"reasoning": {"effort": 3}}, "invalid_reasoning", "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_text", "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "invalid_text", "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "invalid_text", "text.format.name"),
        ({"text": {"verbosity": 1}}, "invalid_text", "text.verbosity"),
        ({"include": "x"}, "invalid_include", "include"),
        ({"truncation": "some"}, "invalid_truncation", "truncation"),
        ({"user": 5}, "invalid_user", "user"),
        ({"prompt": {"id": "p"}}, "invalid_prompt", "prompt"),
    ],
)
def test_what_is_wrong_is_named(fields, code, param):
    """I1: wrong types, unknown items and tools, and contradictions are 400 with their place in the request."""
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert (refusal.value.status, refusal.value.code) == (400, code)
    assert param is None or refusal.value.param == param
    assert refusal.value.message.endswith(".")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"model":"m","input":"Hi","temperature":1e999}',
        b'{"model":"m","input":"Hi","temperature":NaN}',
        b'{"model":"m","input":' + b'[{"content":' * 300 + b"0" + b"}]" * 300 + b"}",
        b'{"model":"m","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","input":"Hi","max_output_tokens":' + b"9" * 5000 + b"}",
    ],
)
def test_what_no_json_can_tell_again_is_refused(raw):
    """J4: broken, endless and endlessly deep bodies are 400 before anything is written."""
    with pytest.raises(InvalidRequest) as refusal:
        parse_responses(raw)
    assert refusal.value.code == "invalid_json"


FIELDS = (
    *("model", "input", "instructions", "store", "stream", "background", "metadata", "previous_response_id"),
    *("conversation", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "max_output_tokens"),
    *("text", "reasoning", "user", "include"),
)
INNER = "type role content id call_id output name arguments format schema effort mode image_url file_data"
NAMES = st.sampled_from([*FIELDS, *INNER.split()])
KINDS = "message function function_call function_call_output input_text input_image refusal user assistant"
WORDS = st.text("a.\x00é\U0001f642\ud83d", max_size=3) | st.sampled_from(KINDS.split())
CODES = {f"invalid_{name}" for name in (*FIELDS, "session_id", "json")}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@UNTIMED
@given(fields=st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_body_is_read_or_refused(fields):
    """I1: no body at all is an error of ours: it makes a chat body, or it is 400."""
    raw = json.dumps({"model": "m", "input": "Hi"} | fields).encode()
    refused: InvalidRequest | None = None
    try:
        assert body_of(parse_responses(raw), stream=True)["stream"] is True
    except InvalidRequest as refusal:
        refused = refusal
    assert refused is None or (refused.status == 400 and refused.code in {"conflicting_session", *CODES})
