"""What runs a turn, as the adapter sees it: a call answered as JSON or as events, or failed in one of four ways."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer; either `body` (JSON, bytes unchanged) or `events` (raw blocks as they arrive) is there.

    `content_type` is as it was sent. `headers` are those that may be passed on, names in lower case.
    """

    status: int
    content_type: str
    headers: dict[str, str]
    body: bytes | None = None
    events: AsyncIterator[bytes] | None = None


class UpstreamError(Exception):
    """The call gave no answer. What the caller does next depends on whether the upstream can have acted:

    UpstreamError
    ├── UpstreamRefused       nothing ran, and the refusal is the caller's to read
    ├── UpstreamAuthFailed    nothing ran; the operator's credentials are wrong
    ├── UpstreamUnavailable   nothing was sent
    └── UpstreamFailed        it was dispatched and may have run
    """


class UpstreamRefused(UpstreamError):
    """The upstream refused before it did anything: a 4xx other than 401 and 403, or 503 before a byte of an answer.

    `headers` may hold what says when to come again (`retry-after`), beside those of an answer.
    """

    def __init__(self, status: int, content_type: str, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"the upstream answered {status}")
        self.status = status
        self.content_type = content_type
        self.headers = headers
        self.body = body


class UpstreamAuthFailed(UpstreamError):
    """The upstream did not accept our credentials; nothing it said is kept, since it may quote them."""


class UpstreamUnavailable(UpstreamError):
    """No connection could be made, so nothing was sent."""


class UpstreamFailed(UpstreamError):
    """The call was dispatched and its answer is lost or unusable; the text says how, in words fit for anybody."""


def include_usage(request: object) -> bool:
    """Whether a decoded chat body asks for the usage at the end of its stream."""
    options = request.get("stream_options") if isinstance(request, dict) else None
    return isinstance(options, dict) and options.get("include_usage") is True


class Executor(Protocol):
    """Runs turns. An executor is entered before its first call; leaving it ends what is still running."""

    def chat(self, body: bytes, *, stream: bool, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answer]:
        """Send a chat completion request; leaving the block ends the call at once, whatever of the answer was read.

        `stream` is the form that `body` asks for; `headers` go along with it. UpstreamError on entry, or while `events`
        is read.
        """
        ...

    async def models(self) -> Answer:
        """The models that can be asked for, as JSON; UpstreamError."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
