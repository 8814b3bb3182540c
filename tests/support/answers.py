"""What the stub model server answers, by mode: bytes to send and what goes wrong on the way, nothing about sockets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SECRET = "sk-upstream-secret-that-must-never-leak"
"""Part of the 401 answer, text and headers; a test looks for it in everything a gateway says and stores."""

RETRY_AFTER_S = 7
"""What a 429 asks for."""

_BIG_PIECE = 16_384
_JSON = "application/json"
_SSE = "text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Answer:
    """A status, headers and pieces of a body, with the pauses and the fault that go with them.

    `before` is what happens ahead of the status line; `after_first` what happens once the first piece is out.
    """

    pieces: Sequence[bytes]
    status: int = 200
    content_type: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Literal["", "gate", "hang", "reset"] = ""
    after_first: Literal["", "gate", "hang", "reset", "end"] = ""
    delay_s: float = 0.0
    pause_s: float = 0.0


def answer(mode: str, request: Mapping[str, Any], number: int) -> Answer:
    """The answer to call `number` in a mode such as `ok`, `slow:0.2` or `status:500`; an unknown mode is `ok`."""
    name, _, argument = mode.partition(":")
    if name.startswith("no-such"):
        return error_answer(404, f"The model `{mode}` does not exist", "model_not_found")
    if name == "status":
        return _status(int(argument))
    stream = bool(request.get("stream"))
    pieces = _pieces(name, argument, request, number, stream)
    content_type = _SSE if stream else _JSON
    if name == "slow":
        seconds = float(argument or 0.1)
        return Answer(pieces, content_type=content_type, delay_s=seconds, pause_s=seconds if stream else 0.0)
    if name in ("gate", "hang"):
        return Answer(pieces, content_type=content_type, before=name)  # type: ignore[arg-type]  # narrowed by the test
    if name == "reset_before":
        return Answer((), before="reset")
    faults: dict[str, Literal["gate", "hang", "reset", "end"]] = {
        "gate_mid": "gate",
        "hang_mid": "hang",
        "reset_mid": "reset",
        "truncated": "end",
    }
    if name in faults:
        return Answer(_halved(pieces), content_type=content_type, after_first=faults[name])
    # Pieces of the odd stream are cut inside a character: a moment between them keeps them apart on the wire.
    return Answer(pieces, content_type=content_type, pause_s=0.005 if name == "weird" else 0.0)


def error_answer(status: int, message: str, code: str | None, headers: Mapping[str, str] | None = None) -> Answer:
    """An OpenAI error envelope."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Answer((json.dumps({"error": error}).encode(),), status=status, headers=headers or {})


def _status(status: int) -> Answer:
    if status in (401, 403):
        text = f"Incorrect API key provided: {SECRET}."
        return error_answer(status, text, "invalid_api_key", {"openai-organization": SECRET})
    if status == 429:
        text = "Rate limit reached for requests"
        return error_answer(status, text, "rate_limit_exceeded", {"Retry-After": str(RETRY_AFTER_S)})
    return error_answer(status, f"The stub was asked to answer {status}", None)


def _pieces(name: str, argument: str, request: Mapping[str, Any], number: int, stream: bool) -> Sequence[bytes]:
    if name == "malformed":
        broken = b'{"id": "chatcmpl-%d", "choices": [{"delta": {"content": "hal' % number
        return (b"data: " + broken + b"\n\n", _DONE) if stream else (broken,)
    if name == "weird":
        return weird_stream(number) if stream else (weird_json(number),)
    tools = _tool_calls(number) if name == "tools" else None
    text = "x" * int(argument) if name == "big" else last_user_text(request)
    finish = "tool_calls" if tools else "stop"
    if not stream:
        message: dict[str, Any] = {"role": "assistant", "content": None if tools else text}
        if tools:
            message["tool_calls"] = tools
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        body = _envelope("chat.completion", request, number, [choice]) | {"usage": _usage(request, text)}
        return (json.dumps(body).encode(),)
    deltas: list[dict[str, Any]]
    deltas = _tool_deltas(tools) if tools else [{"content": word} for word in _words(text)]
    deltas[0] = {"role": "assistant", "content": None} | deltas[0]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    chunks = [_envelope("chat.completion.chunk", request, number, [choice]) for choice in choices]
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append(_envelope("chat.completion.chunk", request, number, []) | {"usage": _usage(request, text)})
    return [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [_DONE]


def _envelope(kind: str, request: Mapping[str, Any], number: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
    model = request.get("model")
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000, "model": model, "choices": choices}


def _usage(request: Mapping[str, Any], text: str) -> dict[str, int]:
    sent = sum(len(_words(text_of(message))) for message in request.get("messages") or [])
    made = len(_words(text))
    return {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made}


def _words(text: str) -> list[str]:
    if len(text) > _BIG_PIECE:
        return [text[at : at + _BIG_PIECE] for at in range(0, len(text), _BIG_PIECE)]
    return re.findall(r"\s*\S+|\s+\Z", text) or [""]


def _halved(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """A JSON body in two halves, so that something can go wrong in the middle; a stream has its pieces already."""
    if len(pieces) > 1:
        return pieces
    middle = len(pieces[0]) // 2
    return pieces[0][:middle], pieces[0][middle:]


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, also when it is given as parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def user_texts(request: Mapping[str, Any]) -> list[str]:
    """The texts of all user messages of a chat request, oldest first."""
    return [text_of(message) for message in request.get("messages") or [] if message.get("role") == "user"]


def last_user_text(request: Mapping[str, Any]) -> str:
    """The text the stub answers with."""
    return (user_texts(request) or [""])[-1]


def _tool_calls(number: int) -> list[dict[str, Any]]:
    calls = [("get_weather", '{"city": "Zürich", "days": 3}'), ("get_time", '{"zone": "UTC"}')]
    return [
        {"id": f"call_{number}_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]


def _tool_deltas(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As providers stream them: the call's head first, then its arguments in two parts."""
    deltas = []
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [call | {"index": index, "function": {"name": name, "arguments": ""}}]})
        parts = arguments[:9], arguments[9:]
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in parts]
    return deltas


def weird_json(number: int) -> bytes:
    """A valid answer that no parser would write again the same way: pass it on byte for byte."""
    return (
        b'{ "object":"chat.completion",\n\t"id" : "chatcmpl-%d","nothing":null , "empty":[], "none":{},'
        b'"nested":[[],{}],"big":9007199254740993,"bigger":12345678901234567890,"exact":1.10,"power":1E+2,\r\n'
        b'"choices":[ {"finish_reason":"stop","index":0,"message":{"content":"\\u0000 \\ud83d\\ude00 %s \\/ end",'
        b'"role":"assistant","refusal":null}}],"created":1700000000,"model":"weird"}  \n'
    ) % (number, "😀 é".encode())


def weird_stream(number: int) -> Sequence[bytes]:
    """A valid stream with comments, CRLF, no space after the colon, odd fields, and a piece cut inside a character."""
    head = b'"id" : "chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"weird"' % number
    smile = "😀".encode()
    return (
        b": hello\r\n\r\n",
        b'data:{%s,"none":[],"choices":[{"index":0,"delta":{"role":"assistant","content":"a%s' % (head, smile[:2]),
        smile[2:] + b'"},"finish_reason":null}]}\r\n\r\n',
        b'data: {"choices":[{"finish_reason":null,"delta":{"content":"\\u0000z"},"index":0}],"n":{}, %s}\n\n' % head,
        b'data: {%s,"big":12345678901234567890,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' % head,
        _DONE,
    )
