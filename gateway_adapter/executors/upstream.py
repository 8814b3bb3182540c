"""An OpenAI-compatible upstream, called once a turn: nothing is sent twice, and no byte of an answer is changed."""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gateway_adapter import json_text
from gateway_adapter.completions import Aggregator, as_events
from gateway_adapter.executors.base import (
    EVENT_STREAM,
    JSON,
    Answer,
    UpstreamAuthFailed,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
    include_usage,
)
from gateway_adapter.sse import EventSplitter, data_of, is_done

_CONNECT_S = 10
# Idle connections are given up before the shortest common server limit (5 s) does it under a request just sent.
_KEEP_CONNECTION_S = 4
# Not openai-organization: it names the operator's account.
_PASSED_ON = ("x-request-id", "openai-processing-ms", "openai-version", "openai-model")
_PASSED_ON_WITH_REFUSAL = (*_PASSED_ON, "retry-after", "x-should-retry", "x-ratelimit-")


class UpstreamExecutor:
    """Calls `base_url` (it ends in /v1) with its own key; a longer silence than `silence_ms` or a longer answer fail.

    ValueError for a URL that cannot be called.
    """

    def __init__(self, base_url: str, api_key: str | None, silence_ms: int, max_answer_bytes: int) -> None:
        self._base = URL(base_url)
        if self._base.scheme not in {"http", "https"} or not self._base.host:
            raise ValueError("the upstream must be an http or https URL")
        if api_key and self._base.user:
            raise ValueError("the upstream's credentials are in its URL or its key, not both")
        self._authorization = {"Authorization": f"Bearer {api_key.strip()}"} if api_key else {}
        self._silence_ms = silence_ms
        self._max_answer_bytes = max_answer_bytes

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_CONNECTION_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # No limit over all: a turn may take as long as it goes on talking. A turn's own limit is the caller's.
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=self._silence_ms / 1000),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    @asynccontextmanager
    async def chat(self, body: bytes, *, stream: bool, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """Send a chat completion request. An answer in the other form than asked for is turned into the asked one."""
        accept = EVENT_STREAM if stream else JSON
        asked = {"Content-Type": JSON, "Accept": accept}
        async with self._call("POST", "chat/completions", {**headers, **asked}, body) as response:
            kept = _kept(response, _PASSED_ON)
            blocks = _Blocks(response, self._max_answer_bytes)
            if response.content_type == EVENT_STREAM and stream:
                yield Answer(response.status, response.headers["Content-Type"], kept, events=blocks)
            elif response.content_type == EVENT_STREAM:
                yield Answer(response.status, JSON, kept, body=await _aggregated(blocks))
            elif stream:
                events = _as_events(await self._json(response), body)
                yield Answer(response.status, EVENT_STREAM, kept, events=_each(events))
            else:
                yield Answer(response.status, response.headers["Content-Type"], kept, body=await self._json(response))

    async def models(self) -> Answer:
        """The upstream's models, as it lists them."""
        async with self._call("GET", "models", {"Accept": JSON}) as response:
            kept = _kept(response, _PASSED_ON)
            return Answer(response.status, response.headers["Content-Type"], kept, body=await self._json(response))

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and give out a response that is an answer; not read to its end, its connection is closed."""
        url = self._base.with_path(f"{self._base.raw_path.rstrip('/')}/{path}", encoded=True, keep_query=True)
        sent = CIMultiDict(headers)
        sent.update({"Accept-Encoding": "identity", **self._authorization})  # identity: the bytes pass as they are
        data = BytesIO(body) if body is not None else None  # goes out in pieces, so that a large one holds up nobody
        with _failures():
            response = await self._session.request(method, url, data=data, headers=sent, allow_redirects=False)
        try:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            yield response
        finally:
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        status = response.status
        if status in {401, 403}:
            return UpstreamAuthFailed(f"the upstream answered {status}")
        if not (400 <= status < 500 or status == 503):
            return UpstreamFailed(f"the upstream answered {status}")
        try:
            body = await self._whole(response)
        except UpstreamFailed:
            body = b""  # the status alone says that nothing ran
        content_type = response.headers.get("Content-Type", "")
        return UpstreamRefused(status, content_type, _kept(response, _PASSED_ON_WITH_REFUSAL), body)

    async def _json(self, response: aiohttp.ClientResponse) -> bytes:
        kind = response.content_type
        if kind != JSON and not kind.endswith("+json"):
            raise UpstreamFailed("the upstream's answer is not JSON")
        body = await self._whole(response)
        try:
            body.decode("utf-8")
            json_text.members(body)
        except ValueError:
            raise UpstreamFailed("the upstream's answer is not a JSON object") from None
        return body

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        pieces, left = [], self._max_answer_bytes
        while piece := await _read(response):
            left -= len(piece)
            if left < 0:
                raise UpstreamFailed("the upstream's answer is too large")
            pieces.append(piece)
        return b"".join(pieces)


class _Blocks:
    """The event blocks of a response as they arrive; it holds no resource of its own and may be left at any point."""

    def __init__(self, response: aiohttp.ClientResponse, max_bytes: int) -> None:
        self._response = response
        self._left = max_bytes
        self._splitter = EventSplitter()
        self._ready: deque[bytes] = deque()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            data = await _read(self._response)
            self._left -= len(data)
            if self._left < 0:
                raise UpstreamFailed("the upstream's answer is too large")
            self._ended = not data
            self._ready.extend(self._splitter.feed(data) if data else self._last())
        return self._ready.popleft()

    def _last(self) -> list[bytes]:
        """An event that only lacks its blank line, as some servers end a stream; UpstreamFailed for half an event."""
        rest = self._splitter.rest()
        data = data_of(rest)
        if data is None:
            return []
        try:
            if not is_done(rest):
                json_text.loads(data)
        except ValueError:
            raise UpstreamFailed("the upstream's answer was cut off") from None
        return [rest + b"\n\n"]


@contextmanager
def _failures() -> Iterator[None]:
    """Name what can go wrong with a call; around single awaits only, so that a caller's own errors stay its own."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise UpstreamUnavailable("the upstream cannot be reached") from None
    except TimeoutError:
        raise UpstreamFailed("the upstream was silent for too long") from None
    except (aiohttp.ClientError, OSError):
        raise UpstreamFailed("the connection to the upstream broke") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """What has arrived, at least a byte; empty at the end."""
    with _failures():
        return await response.content.readany()


def _kept(response: aiohttp.ClientResponse, prefixes: tuple[str, ...]) -> dict[str, str]:
    """The headers that may be passed on: never credentials, cookies, or what belongs to one connection."""
    return {name.lower(): value for name, value in response.headers.items() if name.lower().startswith(prefixes)}


async def _aggregated(blocks: _Blocks) -> bytes:
    """The JSON form of a stream that was not asked for."""
    aggregator = Aggregator()
    async for block in blocks:
        aggregator.add(block)
    if not aggregator.complete:
        raise UpstreamFailed("the upstream's answer was cut off")
    return aggregator.body()


def _as_events(answer: bytes, request: bytes) -> list[bytes]:
    """The event form of a JSON answer, as its request wants it."""
    try:
        return as_events(answer, include_usage(json_text.loads(request)))
    except ValueError:
        raise UpstreamFailed("the upstream's answer is not a chat answer") from None


async def _each(blocks: list[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
