"""Two replicas on a store, and short ways to have them do what script tests are about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from coordinator.identity import Implicit, Target, key_digest, new_nonce, target_of
from coordinator.outcomes import Accepted, Ended, Granted, Result, TurnView, Word
from coordinator.steps import Begun, Kept
from coordinator.store import Store
from tests.lua.session_stage import DECLARED, HOST, SessionStage, stage_settings
from tests.lua.store_view import CHOSEN, HOUR_MS, T1, T2, T3, T4, TENANT

__all__ = [
    "CHOSEN",
    "DECLARED",
    "HOST",
    "HOUR_MS",
    "T1",
    "T2",
    "T3",
    "T4",
    "TENANT",
    "Stage",
    "at_once",
    "stage_settings",
]

_T = TypeVar("_T")

OPENING = target_of(TENANT, Implicit((b"", b"hi")))
"""The conversation of an opening."""
MINTED = Target("m" + 24 * "0")
KEY = key_digest("k1")
"""Digest of an idempotency key."""
ANSWER = Result(status=200, body=b'{"n": []}\x00\xf0\x9f\x98\x80', headers=b"x: y", content_type="application/json")
SLACK_MS = 2_000
"""Times of two calls in a row differ by less."""


class Stage(SessionStage):
    """Two replicas, `r1` and `r2`, on one store. Calls are `r1`'s unless `by="r2"`."""

    async def begin(
        self,
        turn: str = T1,
        target: Target = CHOSEN,
        *,
        by: str = "r1",
        settings: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Begun:
        """Asks for a turn: exclusive, willing to wait, history in the store, without a key."""
        options: dict[str, Any] = {
            "patience_s": 60,
            "expected": "",
            "nonce": new_nonce(),
            "history": "store",
            "exclusive": True,
            "policy": "wait",
            "route": "chat",
        }
        outcome = await self.steps(by, **settings or {}).turn_begin(TENANT, target, turn, **options | changes)
        # Told again, it is the same but for the time at which it is told.
        if isinstance(outcome, Accepted):
            return replace(outcome, accepted_ms=0)
        return replace(outcome, granted_ms=0) if isinstance(outcome, Granted) else outcome

    async def granted(self, turn: str = T1, target: Target = CHOSEN, **changes: Any) -> Granted:
        """Asks for a turn that is there to be had."""
        outcome = await self.begin(turn, target, **changes)
        assert isinstance(outcome, Granted), outcome
        return outcome

    async def keyed(self, turn: str = T1, target: Target = CHOSEN, **changes: Any) -> Begun:
        """Asks for a turn under the key `KEY`, for the request `f1`."""
        return await self.begin(turn, target, **{"digest": KEY, "fingerprint": "f1"} | changes)

    async def keyed_grant(self, turn: str = T1, target: Target = CHOSEN, **changes: Any) -> Granted:
        """As `keyed`, where it is there to be had."""
        return await self.granted(turn, target, **{"digest": KEY, "fingerprint": "f1"} | changes)

    async def accepted(self, turn: str = T1, target: Target = CHOSEN, **changes: Any) -> Accepted:
        """Has work accepted, to be started later."""
        outcome = await self.begin(turn, target, **{"request": b"work"} | changes)
        assert isinstance(outcome, Accepted), outcome
        return outcome

    async def claim(self, turn: str = T1, *, by: str = "r2") -> TurnView | None:
        """Takes over accepted work."""
        return await self.steps(by).run_claim(TENANT, turn)

    async def hide(self, turn: str = T1) -> bool:
        """Takes an answer out of sight."""
        return await self.steps().turn_hide(TENANT, turn)

    async def append(
        self, fence: int, events: Sequence[bytes], first: int = 1, *, turn: str = T1, target: Target = CHOSEN
    ) -> int | Ended | Word:
        """Appends events to the turn's log."""
        return await self.steps().turn_append(TENANT, turn, target.cid, fence, first, events)

    async def finish(
        self,
        fence: int,
        *,
        turn: str = T1,
        target: Target = CHOSEN,
        digest: str = "",
        state: Literal["completed", "failed"] = "completed",
        result: Result = ANSWER,
        kept: Kept = "body",
        first: int = 1,
        events: Sequence[bytes] = (),
        messages: Sequence[bytes] = (),
        settings: dict[str, Any] | None = None,
    ) -> str | Ended | Word:
        """Commits a turn."""
        return await self.steps(**settings or {}).turn_finish(
            TENANT,
            turn,
            target.cid,
            fence,
            digest=digest,
            state=state,
            result=result,
            kept=kept,
            first=first,
            events=events,
            messages=messages,
        )

    async def abandon(
        self,
        fence: int | None,
        state: Literal["refused", "cancelled", "interrupted", "failed"] = "refused",
        *,
        turn: str = T1,
        target: Target = CHOSEN,
        digest: str = "",
        refusal: Result | None = None,
        by: str = "r1",
    ) -> str | Ended | Word:
        """Ends a turn without an answer."""
        return await self.steps(by).turn_abandon(
            TENANT, turn, target.cid, fence=fence, digest=digest, state=state, refusal=refusal
        )

    async def status(self, turn: str = T1, target: Target = CHOSEN, *, digest: str = "") -> TurnView | None:
        """The turn as everybody is told of it."""
        return await self.steps().turn_status(TENANT, turn, target.cid, digest)

    async def renew(self, *turns: str) -> tuple[set[str], set[str]]:
        """Renews leases; the lost and the cancelled."""
        return await self.steps().turn_renew(TENANT, turns)

    async def used(
        self, target: Target = CHOSEN, *, turn: str = T1, messages: Sequence[bytes] = (), **changes: Any
    ) -> Granted:
        """A conversation in which one turn was completed."""
        grant = await self.granted(turn, target, **changes)
        assert await self.finish(grant.fence, turn=turn, target=target, messages=messages) == "finished"
        return grant


async def at_once(url: str, count: int, act: Callable[[Stage, int], Awaitable[_T]]) -> list[_T]:
    """Has that many act at the same moment, each on a connection of its own; their outcomes, by number."""
    barrier = asyncio.Barrier(count)

    async def one(number: int) -> _T:
        async with Store(url, stage_settings("r0")) as store:
            client = store.listener()
            await store.execute("PING")  # connected before the start
            await barrier.wait()
            outcome = await act(Stage(store, client), number)
            await client.aclose()
            return outcome

    return await asyncio.gather(*map(one, range(count)))
