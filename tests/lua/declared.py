"""Declared conversations and a host's own session ids, by their names: short ways to say what a test is about."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from coordinator.identity import Declared, Explicit, Target, target_of
from coordinator.outcomes import Busy, HostSession, Reset, Word
from tests.lua.stage import DECLARED, SLACK_MS, TENANT, Stage
from tests.support.snapshot import differences

HOME = DECLARED
ELSEWHERE = target_of(TENANT, Declared("discord", "chat-42"))
"""The same key under another source."""
IDLE_MS = 3_600_000
REASONS = ("session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired")
HARMLESS = ("compression", "agent_close", "branched", "ws_orphan_reap", "some words of a host's own")
"""Ends that are no boundary."""
FORK = Target("m" + 24 * "f")
"""The conversation of a fork."""


def named(target: Target, session_id: str) -> Target:
    """The conversation, by the id of its session."""
    return Target(target.cid, session_id)


def host_id(session_id: str) -> Target:
    """A session id that a host minted itself."""
    return target_of(TENANT, Explicit(session_id))


async def moved_on(stage: Stage, target: Target = HOME, **changes: Any) -> Reset:
    """A reset of something that can be reset."""
    answer = await stage.reset(target, **changes)
    assert isinstance(answer, Reset), answer
    return answer


async def forked(stage: Stage, origin: Target) -> tuple[str, int] | Word:
    """Opens a copy of a session, in the conversation `FORK`."""
    return await stage.fork(origin, FORK.cid)


async def record(stage: Stage, session_id: str, key: str = "", **changes: Any) -> HostSession | Word:
    """Records a host's session id, bound to (source, key) when there is a key."""
    return await stage.record(host_id(session_id), key=key, **changes)


async def recorded(stage: Stage, session_id: str, key: str = "", **changes: Any) -> HostSession:
    """The same of an id that can be recorded."""
    return await stage.recorded(host_id(session_id), key=key, **changes)


async def end(
    stage: Stage, session_id: str, reason: str = "session_reset", **changes: Any
) -> tuple[bool, list[str]] | str | Busy | Word:
    """Ends a host's session id."""
    return await stage.end(host_id(session_id), reason=reason, boundary=reason in (*REASONS, "deleted"), **changes)


@contextlib.asynccontextmanager
async def only_records_change(stage: Stage) -> AsyncIterator[None]:
    """Whatever happens in the block leaves all but the records of host ids as it was; times may move a little."""

    async def others() -> dict[bytes, Any]:
        return {key: entry for key, entry in (await stage.snapshot()).items() if b":record:" not in key}

    before = await others()
    yield
    assert differences(before, await others(), slack_ms=SLACK_MS) == []


async def generation(stage: Stage, target: Target = HOME) -> int:
    """The generation that is current; 0 for a conversation that is unknown."""
    return int(await stage.client.hget(stage.keys.conversation(target.cid), "generation") or 0)


async def rest(stage: Stage, ms: int, target: Target = HOME) -> None:
    """Lets a conversation rest, as time would; a negative time is a clock that stepped back."""
    key = stage.keys.conversation(target.cid)
    await stage.client.hset(key, "active_ms", str(await stage.now_ms() - ms))


async def begin_by(stage: Stage, *moments_ms: int, turn: str, idle_ms: int = 0, **changes: Any) -> Any:
    """Asks for a turn of `HOME` where such boundaries are set; the moments are counted back from now."""
    now = await stage.now_ms()
    daily = ",".join(str(now - moment) for moment in sorted(moments_ms, reverse=True))
    options: dict[str, Any] = {"target": HOME, "settings": {"idle_ms": idle_ms}, "daily": daily} | changes
    return await stage.begin(turn, **options)


async def busy(stage: Stage, target: Target, turn: str, *, waiting: Sequence[str] = ()) -> int:
    """A turn runs in the conversation on r1, the others wait on r2; its fence."""
    grant = await stage.granted(turn, target)
    for other in waiting:
        await stage.begin(other, target, by="r2")
    return grant.fence
