"""Running a granted turn: the upstream is called, its answer goes to the store and the client, it is committed.

An endpoint's `Dialect` says how it speaks; everything that makes a turn safe is here, once for all endpoints.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from coordinator import Result, Turn
from gateway_adapter import context, replays
from gateway_adapter.errors import NO_RETRY, ErrorAnswer
from gateway_adapter.event_stream import ClientStream, arriving
from gateway_adapter.executors.base import (
    Answer,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.settings import GatewaySettings

_BATCH_S = 0.025  # with its renewals, a resumable stream goes to the store at most 50 times a second, however fast


@dataclass(frozen=True, slots=True)
class Ending:
    """What an answer comes to."""

    result: Result
    """What a retry that asks for JSON gets."""
    messages: Sequence[bytes] = ()
    """What the transcript gains, one JSON message an item."""
    events: Sequence[bytes] = ()
    """The last events of the stream."""


class Dialect(Protocol):
    """How an endpoint speaks to its client and to the upstream."""

    stream: bool
    """Whether the answer goes out as events."""
    resumable: bool
    """Whether the events are kept, so that the stream can be taken up again: each then carries an id."""
    ended: bool
    """Whether the upstream's stream has said its last."""

    def upstream_request(self, turn: Turn) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers for the upstream."""

    def whole(self, answer: Answer) -> Ending:
        """What a JSON answer comes to."""

    def start(self) -> list[bytes]:
        """The first events of a stream."""

    def add(self, block: bytes) -> list[bytes]:
        """The events for one of the upstream's. Raises UpstreamFailed for what is no answer."""

    def finish(self) -> Ending:
        """What the stream came to. Raises UpstreamFailed when it ended before its answer."""

    def fail(self, error: ErrorAnswer) -> Ending:
        """What a failure after the dispatch comes to."""


async def run(
    app: web.Application,
    turn: Turn,
    dialect: Dialect,
    client: ClientStream,
    about: Mapping[str, str],
    *,
    accepted: bool = False,
) -> Result | None:
    """Runs the turn. Returns what is to be sent as JSON; None when the client's stream has it all.

    `about`: headers that tell of the turn, part of its answer and of every replay. `accepted`: its client was told that
    it would run, so that a refusal is its outcome and not as if it had never been asked for.
    """
    if client.is_gone:  # it left while it waited, and nobody had looked yet: nothing is to run for it
        await turn.refuse()
        return None
    try:
        body, headers = dialect.upstream_request(turn)
    except InvalidRequest:
        await turn.refuse()
        raise
    limit_s = app[context.SETTINGS].coordinator.turn_limit_ms / 1000
    try:
        async with (
            asyncio.timeout(limit_s),
            app[context.EXECUTOR].chat(body, stream=dialect.stream, headers=headers) as answer,
        ):
            if answer.events is None:
                return await _whole(turn, dialect, answer, about)
            await _stream(turn, dialect, answer, answer.events, client, about)
            return None
    except (UpstreamRefused, UpstreamAuthFailed, UpstreamUnavailable) as refusal:
        # Nothing ran: the key is free again, and those who joined are told the same.
        refused = replays.refusal_of(refusal)
        if accepted:
            await turn.finish(refused, state="failed")
        else:
            await turn.refuse(refused)
        return refused
    except (UpstreamError, TimeoutError) as failure:
        return await _fail(turn, dialect, client, failure, about)


async def _whole(turn: Turn, dialect: Dialect, answer: Answer, about: Mapping[str, str]) -> Result:
    ending = dialect.whole(answer)
    result = _with_headers(ending.result, {**answer.headers, **about, **NO_RETRY})
    await turn.finish(result, messages=ending.messages, events=ending.events)
    return result


async def _stream(
    turn: Turn,
    dialect: Dialect,
    answer: Answer,
    events: AsyncIterator[bytes],
    client: ClientStream,
    about: Mapping[str, str],
) -> None:
    headers = {**answer.headers, **about}
    await client.open({"X-Hermes-Session-Id": turn.session_id, **headers, **NO_RETRY})
    out = dialect.start()
    if out:
        if dialect.resumable:
            await turn.append(out)
        await client.send(out)
        out = []
    async with arriving(events, _BATCH_S if dialect.resumable else 0) as batches:
        async for batch in batches:
            for block in batch:
                out += dialect.add(block)
                if dialect.ended:
                    break
            if dialect.ended:
                break
            if out and dialect.resumable:
                await turn.append(out)
            await client.send(out)
            if not batch:
                await client.keep_alive()
            out = []
    ending = dialect.finish()
    # The last events are held back until the turn is committed: who has read it all can rely on it.
    last = [*out, *ending.events]
    await turn.finish(_with_headers(ending.result, headers), messages=ending.messages, events=last)
    await client.send(last)
    await client.close()


async def _fail(
    turn: Turn, dialect: Dialect, client: ClientStream, failure: Exception, about: Mapping[str, str]
) -> Result | None:
    """Records a failure after the dispatch, so that a retry is told the same and nothing runs twice."""
    error = replays.failure_of(failure)
    ending = dialect.fail(error)
    result = _with_headers(ending.result, {**error.headers, **about})
    streamed = client.is_open
    await turn.finish(result, events=ending.events if streamed else (), state="failed")
    if not streamed:
        return result
    await client.send(ending.events)
    await client.close()
    return None


def _with_headers(result: Result, headers: Mapping[str, str]) -> Result:
    return Result(
        status=result.status,
        body=result.body,
        content_type=result.content_type,
        headers=json.dumps(dict(headers)).encode(),
    )


def carried_along(
    settings: GatewaySettings, turn: Turn, sent: Mapping[str, str], *, scope: bool
) -> tuple[dict[str, bytes], dict[str, str]]:
    """What goes along with an upstream request: members of its body and headers, for the scope and the fence."""
    members = settings.scope_as.in_body(turn.scope) if scope else {}
    headers = settings.scope_as.in_headers(turn.scope if scope else None, sent)
    if settings.fence_header:
        headers[settings.fence_header] = str(turn.fence)
    return members, headers
