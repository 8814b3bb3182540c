"""Calls to an OpenAI-compatible upstream: what passes unchanged, what is refused, and what may have run."""

import asyncio
import contextlib
import json
import re
import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_adapter.completions import Aggregator, as_events
from gateway_adapter.executors import (
    UpstreamAuthFailed,
    UpstreamExecutor,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
    upstream,
)
from gateway_adapter.sse import DONE, event

BODY = b'{ "model": "m",  "messages": [], "n": 12345678901234567890123 }'
ANSWER = b'{ "id" : "c1", "choices": [ {"index":0, "message": {"role":"assistant","content":"\\u0000\\ud83d"},\
 "finish_reason":"stop"} ], "usage": {"total_tokens": 9007199254740993} }'
CHUNK = event(b'{"id":"c1","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}')
STOP = event(b'{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')


@contextlib.asynccontextmanager
async def executor_for(answer, *, api_key="key", silence_ms=5000, max_answer_bytes=1_000_000, query=""):
    """An executor whose upstream answers with the given aiohttp handler."""
    app = web.Application()
    app.router.add_route("*", "/base/v1/{path:.*}", answer)
    async with TestServer(app) as server:
        url = f"{server.make_url('/base/v1')}{query}"
        async with UpstreamExecutor(url, api_key, silence_ms, max_answer_bytes) as executor:
            yield executor


@contextlib.asynccontextmanager
async def executor_on(serve, **options):
    """An executor whose upstream is a bare connection handler (reader, writer), for what no HTTP server would send."""

    async def connected(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        silence_ms = options.get("silence_ms", 5000)
        async with UpstreamExecutor(f"http://127.0.0.1:{port}/v1", None, silence_ms, 1_000_000) as executor:
            yield executor


async def read_request(reader):
    """The head and body of the next request on a bare connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    assert length is not None
    return head, await reader.readexactly(int(length[1]))


def replying(body=b"{}", status=200, content_type="application/json", **headers):
    """A handler that answers every request alike."""

    async def answer(request):
        await request.read()
        return web.Response(body=body, status=status, headers={"Content-Type": content_type, **headers})

    return answer


def streaming(*blocks):
    """A handler that streams these blocks."""
    return replying(b"".join(blocks), content_type="text/event-stream; charset=utf-8")


async def ask(executor, *, stream=False, body=BODY, headers=None):
    """The whole answer: its bytes, and the answer they came with."""
    async with executor.chat(body, stream=stream, headers=headers or {}) as answer:
        if answer.events is None:
            return answer.body, answer
        return [block async for block in answer.events], answer


async def test_a_json_answer_keeps_its_bytes_and_safe_headers():
    """H7, J8: body, status and content type pass as sent, with request id and openai headers, and nothing else."""
    handler = replying(
        ANSWER,
        201,
        "application/json; charset=utf-8",
        **{
            "X-Request-Id": "r1",
            "OpenAI-Processing-Ms": "12",
            "Set-Cookie": "secret=1",
            "WWW-Authenticate": "x",
            "Authorization": "x",
            "Keep-Alive": "timeout=5",
            "Retry-After": "1",
        },
    )
    async with executor_for(handler) as executor:
        body, answer = await ask(executor)
    assert body == ANSWER
    assert (answer.status, answer.content_type) == (201, "application/json; charset=utf-8")
    assert answer.headers == {"x-request-id": "r1", "openai-processing-ms": "12"}


@pytest.mark.parametrize(
    ("api_key", "authorization"), [("key", ["Bearer key"]), (" key\n", ["Bearer key"]), (None, []), ("", [])]
)
async def test_the_request_is_sent_as_it_is_with_our_own_key(api_key, authorization):
    """G12, H7, J8: the body's bytes and the given headers go out, with the operator's key and no client's."""
    seen = []

    async def answer(request):
        seen.append((request.method, request.path_qs, await request.read(), request.headers))
        return web.json_response({})

    async with executor_for(answer, api_key=api_key, query="?v=1") as executor:
        await ask(executor, headers={"X-Fence": "7", "authorization": "Bearer client"} if api_key else {"X-Fence": "7"})
    [(method, path, body, headers)] = seen
    assert (method, path, body) == ("POST", "/base/v1/chat/completions?v=1", BODY)
    assert headers.getall("Authorization", []) == authorization
    assert (headers["X-Fence"], headers["Content-Type"]) == ("7", "application/json")
    assert headers.getall("Accept-Encoding") == ["identity"]


async def test_events_arrive_one_by_one_with_their_bytes():
    """H1, H7: each event is given out while the upstream still speaks, comments and odd line ends included."""
    blocks = [b": first\n\n", b"data:{}\r\n\r\n", CHUNK, b"event: x\ndata: {}\n\n", DONE]
    turns: asyncio.Queue[None] = asyncio.Queue()

    async def answer(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Request-Id": "r"})
        await response.prepare(request)
        for block in blocks:
            await response.write(block)
            await turns.get()
        return response

    received = []
    async with executor_for(answer) as executor, executor.chat(BODY, stream=True, headers={}) as answered:
        assert (answered.content_type, answered.headers) == ("text/event-stream; charset=utf-8", {"x-request-id": "r"})
        async for block in answered.events:
            received.append(block)
            turns.put_nowait(None)
    assert received == blocks


@pytest.mark.parametrize("status", [400, 404, 408, 422, 429, 503])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_kept_as_sent(status, stream):
    """F6: any 4xx and 503 mean that nothing ran; status, body, type and Retry-After are the caller's to read."""
    handler = replying(b'{ "error": 1}', status, "application/problem+json", **{"Retry-After": "7", "Set-Cookie": "x"})
    async with executor_for(handler) as executor:
        with pytest.raises(UpstreamRefused) as raised:
            await ask(executor, stream=stream)
    refused = raised.value
    assert (refused.status, refused.content_type, refused.body) == (
        status,
        "application/problem+json",
        b'{ "error": 1}',
    )
    assert refused.headers == {"retry-after": "7"}


async def test_a_refusal_that_breaks_off_is_still_a_refusal():
    """F6: once the status says that nothing ran, a lost or too large explanation changes nothing."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 429 Slow\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
        await writer.drain()

    async with executor_on(serve) as executor:
        with pytest.raises(UpstreamRefused) as raised:
            await ask(executor)
    assert (raised.value.status, raised.value.body) == (429, b"")


@pytest.mark.parametrize("status", [401, 403])
async def test_wrong_credentials_of_ours_stay_ours(status):
    """J8: the upstream's 401 and 403 show nothing of what it said, which may quote the key."""
    async with executor_for(replying(b'{"error": "wrong key sk-secret"}', status)) as executor:
        with pytest.raises(UpstreamAuthFailed) as raised:
            await ask(executor)
    assert "sk-secret" not in f"{raised.value!r}{vars(raised.value)}"


@pytest.mark.parametrize("status", [500, 502, 504, 529, 302, 307])
async def test_other_statuses_are_failures_after_dispatch(status):
    """F6: a 5xx other than 503 may have run; a redirect is not followed, or the request would be sent twice."""
    calls = []

    async def answer(request):
        calls.append(request.path)
        return web.Response(status=status, headers={"Location": "/base/v1/elsewhere"})

    async with executor_for(answer) as executor:
        with pytest.raises(UpstreamFailed):
            await ask(executor)
    assert calls == ["/base/v1/chat/completions"]


async def test_a_refused_connection_sent_nothing():
    """F6: when nobody listens, it is certain that nothing ran."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections to it are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with UpstreamExecutor(url, None, 5000, 1000) as executor:
            with pytest.raises(UpstreamUnavailable):
                await ask(executor)
            with pytest.raises(UpstreamUnavailable):
                await executor.models()


@pytest.mark.parametrize("known", [False, None])
async def test_a_name_that_leads_nowhere_sent_nothing(known, monkeypatch):
    """F6: an unknown name, or a connection not made in time, is certain to have run nothing."""

    async def look_up(*args, **options):
        if known is None:
            await asyncio.Event().wait()
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    monkeypatch.setattr(upstream, "_CONNECT_S", 0.05)
    async with UpstreamExecutor("http://upstream.invalid/v1", None, 5000, 1000) as executor:
        with pytest.raises(UpstreamUnavailable) as raised:
            await ask(executor)
    assert "upstream.invalid" not in str(raised.value)


async def test_a_kept_connection_that_breaks_is_not_tried_again():
    """F6, H7: a request lost on a connection kept from an earlier one may have run: it fails and is not sent again."""
    requests = []

    async def serve(reader, writer):
        while True:
            requests.append(await read_request(reader))
            if len(requests) == 2:
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    async with executor_on(serve) as executor:
        await ask(executor)
        with pytest.raises(UpstreamFailed):
            await ask(executor)
        assert len(requests) == 2
        await ask(executor)
    assert len(requests) == 3


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BROKEN = {
    "closed without a word": b"",
    "no HTTP": b"hello\r\n\r\n",
    "half a head": HEAD,
    "cut JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    "cut chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n: x\n\n\r\n",
    "broken chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n: x\n\n\r\nzz\r\n",
    "broken chunk end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n: x\n\nzzzzzz\r\n",
    "broken compression": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
    "half an event": HEAD + b"\r\n" + CHUNK + b'data: {"cho',
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_answer_is_a_failure_after_dispatch(case):
    """F6, H5: an answer that ends too early, or is no HTTP, may have run and is never taken for a whole one."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(BROKEN[case])
        await writer.drain()

    async with executor_on(serve) as executor:
        with pytest.raises(UpstreamFailed):
            await ask(executor, stream="JSON" not in case)


@pytest.mark.parametrize("sent", [b"", HEAD + b"\r\n", HEAD + b"\r\n: x\n\n"], ids=["at once", "head", "event"])
async def test_silence_is_limited(sent):
    """G5: an upstream that says nothing for longer than the limit fails, before its answer and within it."""
    ended = asyncio.Event()

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(sent)
        await reader.read()
        ended.set()

    async with executor_on(serve, silence_ms=100) as executor:
        with pytest.raises(UpstreamFailed, match="silent"):
            await ask(executor, stream=True)
        await asyncio.wait_for(ended.wait(), 2)


async def test_only_silence_is_limited():
    """G5: an answer may take longer than the silence limit as long as something comes, if only comments."""
    blocks = [b": x\n\n"] * 6 + [DONE]

    async def answer(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for block in blocks:
            await response.write(block)
            await asyncio.sleep(0.08)
        return response

    async with executor_for(answer, silence_ms=400) as executor:
        assert (await ask(executor, stream=True))[0] == blocks


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("over", "fails"), [(0, False), (1, True)])
async def test_the_size_of_an_answer_is_limited(stream, over, fails):
    """J9: an answer larger than the limit is not gathered in memory, in either form."""
    body = (b": " + b"x" * 1000 + b"\n\n") if stream else b'{"x":"' + b"y" * 1000 + b'"}'
    handler = streaming(body) if stream else replying(body)
    async with executor_for(handler, max_answer_bytes=len(body) - over) as executor:
        with pytest.raises(UpstreamFailed, match="too large") if fails else contextlib.nullcontext():
            await ask(executor, stream=stream)


@pytest.mark.parametrize("read_first", [False, True])
async def test_leaving_early_closes_the_connection(read_first):
    """H4: leaving the call ends it at the upstream at once, in the middle of its answer and while it is silent."""
    ended = asyncio.Event()

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(HEAD + b"\r\n" + CHUNK)
        await reader.read()
        ended.set()

    async with executor_on(serve) as executor:
        async with executor.chat(BODY, stream=True, headers={}) as answer:
            if read_first:
                assert await anext(aiter(answer.events)) == CHUNK
        await asyncio.wait_for(ended.wait(), 2)


@pytest.mark.parametrize("sent", [b"", HEAD + b"\r\n"], ids=["at once", "head"])
async def test_cancelling_a_silent_call_closes_the_connection(sent):
    """G7, H4: a cancelled call ends at the upstream, whether or not its answer has begun."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(sent)
        began.set()
        await reader.read()
        ended.set()

    async with executor_on(serve) as executor:
        call = asyncio.create_task(ask(executor, stream=True))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(ended.wait(), 2)


@pytest.mark.parametrize("error", [ConnectionResetError("client"), TimeoutError("ours"), ValueError("ours")])
async def test_the_callers_own_errors_stay_its_own(error):
    """H4: what goes wrong with the client while an answer is passed on is not blamed on the upstream."""

    async def pass_on(executor):
        async with executor.chat(BODY, stream=True, headers={}):
            raise error

    async with executor_for(streaming(CHUNK)) as executor:
        with pytest.raises(type(error)) as raised:
            await pass_on(executor)
    assert raised.value is error


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_json_answer_to_a_stream_request_becomes_events(include_usage):
    """F4, H1: an upstream that cannot stream is streamed all the same, usage included when asked for."""
    request = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": include_usage}}).encode()
    async with executor_for(replying(ANSWER)) as executor:
        blocks, answer = await ask(executor, stream=True, body=request)
    assert answer.content_type == "text/event-stream"
    assert blocks == as_events(ANSWER, include_usage)


async def test_a_stream_to_a_json_request_becomes_json():
    """F4, H1: an upstream that always streams is answered as JSON all the same."""
    blocks, aggregator = [b": x\n\n", CHUNK, STOP, DONE], Aggregator()
    for block in blocks:
        aggregator.add(block)
    async with executor_for(streaming(*blocks)) as executor:
        body, answer = await ask(executor)
    assert (body, answer.content_type) == (aggregator.body(), "application/json")


UNUSABLE = {
    "a page": replying(b"<html>", content_type="text/html"),
    "JSON called a page": replying(ANSWER, content_type="text/html"),
    "a page called JSON": replying(b"<html>"),
    "a list": replying(b"[]"),
    "half JSON": replying(b'{"a":'),
    "no UTF-8": replying(b'{"a":"\xff"}'),
    "too deep": replying(b'{"a":' + b"[" * 100_000),
    "nothing": replying(b"", 204, "application/json"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", UNUSABLE)
async def test_an_unusable_answer_is_a_failure(case, stream):
    """F6, H5: what is no JSON object is no answer, found before anything was passed on."""
    async with executor_for(UNUSABLE[case]) as executor:
        with pytest.raises(UpstreamFailed):
            async with executor.chat(BODY, stream=stream, headers={}):
                pass


async def test_other_forms_must_hold_a_whole_answer():
    """H5: a JSON answer that is no chat answer, or a stream cut off, is not turned into the other form."""
    async with executor_for(replying(b'{"error":{}}')) as executor:
        with pytest.raises(UpstreamFailed):
            async with executor.chat(BODY, stream=True, headers={}):
                pass
    async with executor_for(streaming(CHUNK)) as executor:
        with pytest.raises(UpstreamFailed):
            await ask(executor)


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n\r", b'data: {"choices":[]}'])
async def test_a_last_event_without_its_blank_line_counts(last):
    """H1: a server that ends its stream without the last blank line has said everything."""
    async with executor_for(streaming(CHUNK, last)) as executor:
        blocks, _ = await ask(executor, stream=True)
    assert blocks == [CHUNK, last + b"\n\n"]


async def test_calls_share_connections_but_no_cookies_or_proxies(monkeypatch):
    """J8: nothing of one call goes along with the next, and the environment's proxy settings are not ours."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    seen = []

    async def answer(request):
        seen.append((request.transport.get_extra_info("peername"), request.headers.get("Cookie")))
        response = web.json_response({})
        response.set_cookie("secret", "1")
        return response

    async with executor_for(answer) as executor:
        await ask(executor)
        await ask(executor)
    assert seen[0] == seen[1]
    assert seen[0][1] is None


async def test_any_number_of_calls_run_at_once():
    """A7: no call waits for another one's connection."""
    running = asyncio.Barrier(120)

    async def answer(request):
        await running.wait()
        return web.json_response({})

    async with executor_for(answer) as executor:
        await asyncio.gather(*(ask(executor) for _ in range(120)))


async def test_the_models_are_passed_on():
    """H7: the upstream's list of models keeps its bytes, and is asked for with our key."""
    seen = []

    async def answer(request):
        seen.append((request.method, request.path, request.headers["Authorization"]))
        return web.Response(body=b'{ "data": [] }', content_type="application/json")

    async with executor_for(answer) as executor:
        models = await executor.models()
    assert (models.status, models.body) == (200, b'{ "data": [] }')
    assert seen == [("GET", "/base/v1/models", "Bearer key")]


@pytest.mark.parametrize(
    ("url", "api_key"), [("localhost:8000/v1", None), ("ftp://x/v1", None), ("", None), ("http://u:p@x/v1", "key")]
)
def test_an_upstream_that_cannot_be_called_is_refused_at_once(url, api_key):
    """J8: a wrong upstream address is told when the gateway starts, without what may be a password."""
    with pytest.raises(ValueError, match="the upstream") as wrong:
        UpstreamExecutor(url, api_key, 1000, 1000)
    assert "u:p" not in str(wrong.value)
