"""A store with two replicas on it, and short ways to do and see what script tests are about."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from redis.asyncio import Redis

from coordinator.identity import Explicit, Implicit, Target, key_digest, new_nonce, target_of
from coordinator.keys import MAILBOXES, TenantKeys
from coordinator.outcomes import Busy, Ended, Granted, Result, TurnView, Word
from coordinator.settings import Settings
from coordinator.steps import Begun, Kept, Steps
from coordinator.store import Store
from tests.support.snapshot import Snapshot, differences, snapshot

_T = TypeVar("_T")

TENANT = "acme"
CHOSEN = target_of(TENANT, Explicit("chat-42"))
"""The conversation of an id that a client chose."""
OPENING = target_of(TENANT, Implicit((b"", b"hi")))
"""The conversation of an opening."""
MINTED = Target("m" + 24 * "0")
KEY = key_digest("k1")
"""Digest of an idempotency key."""
T1, T2, T3, T4 = (32 * digit for digit in "1234")
"""Turns."""
ANSWER = Result(status=200, body=b'{"n": []}\x00\xf0\x9f\x98\x80', headers=b"x: y", content_type="application/json")
HOUR_MS = 3_600_000
SLACK_MS = 2_000
"""Times of two calls in a row differ by less."""


def stage_settings(replica: str) -> Settings:
    """Working defaults, patient with a busy machine."""
    return Settings(replica=replica, patience_ms=10_000)


class Stage:
    """Two replicas, `r1` and `r2`, on one store. Calls are `r1`'s unless `by="r2"`.

    `client` is a connection of its own, to look and to interfere with plain commands.
    """

    def __init__(self, store: Store, client: Redis) -> None:
        self.store = store
        self.client = client
        self.keys = TenantKeys(TENANT)
        self.settings = stage_settings("r1")

    def steps(self, by: str = "r1", **changes: Any) -> Steps:
        """The scripts as a replica with these settings calls them."""
        return Steps(self.store, replace(self.settings, replica=by, **changes))

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
        return await self.steps(by, **settings or {}).turn_begin(TENANT, target, turn, **options | changes)

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

    async def delete(
        self,
        target: Target = CHOSEN,
        *,
        generation: int = 1,
        token: str = "d1",
        force: bool = False,
        receipts: bool = False,
    ) -> list[str] | Busy | Word:
        """Retires the session that the target names."""
        return await self.steps().session_delete(
            TENANT, target, generation, token, force=force, receipts=receipts, nonce=new_nonce()
        )

    async def erase(self, target: Target = CHOSEN, *turns: str, generation: int = 1) -> int:
        """Erases turns of a retired session; how many are left."""
        return await self.steps().session_erase(TENANT, target.cid, generation, turns)

    async def prune(self, *targets: Target, horizon_ms: int = 0) -> int:
        """Drops conversations; how many."""
        return await self.steps().prune(TENANT, horizon_ms, [target.cid for target in targets])

    async def used(self, target: Target = CHOSEN, *, turn: str = T1, messages: Sequence[bytes] = ()) -> Granted:
        """A conversation in which one turn was completed."""
        grant = await self.granted(turn, target)
        assert await self.finish(grant.fence, turn=turn, target=target, messages=messages) == "finished"
        return grant

    async def now_ms(self) -> int:
        """The store's clock."""
        seconds, micros = await self.store.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def end_lease(self, *turns: str) -> None:
        """Lets the leases of turns end, as time would."""
        for turn in turns:
            assert await self.store.execute("ZADD", self.keys.running, "XX", "CH", await self.now_ms() - 1, turn) == 1

    async def end_vouch(self, *turns: str) -> None:
        """Lets waiters be gone, as time would."""
        for turn in turns:
            assert await self.store.execute("ZADD", self.keys.waiting, "XX", "CH", await self.now_ms() - 1, turn) == 1

    async def step_clock_back(self) -> None:
        """Leaves every deadline where it would be had the store's clock stepped back by an hour."""
        for key in (self.keys.running, self.keys.waiting):
            for turn in await self.store.execute("ZRANGE", key, 0, -1):
                await self.store.execute("ZINCRBY", key, HOUR_MS, turn)

    async def lease_of(self, turn: str) -> int | None:
        """What is left of a turn's lease, in ms; None when it has none."""
        return await self._left_ms(self.keys.running, turn)

    async def vouch_of(self, turn: str) -> int | None:
        """For how long a waiter is vouched for, in ms; None when it does not wait."""
        return await self._left_ms(self.keys.waiting, turn)

    async def _left_ms(self, key: str, turn: str) -> int | None:
        score = await self.store.execute("ZSCORE", key, turn)
        return None if score is None else int(float(score)) - await self.now_ms()

    async def hash(self, key: str) -> dict[str, str]:
        """The fields of a hash that holds text."""
        return {name.decode(): value.decode() for name, value in (await self.client.hgetall(key)).items()}

    async def members(self, key: str) -> list[str]:
        """The members of a set, sorted, or of a sorted set, in order."""
        if await self.client.type(key) == b"zset":
            return [member.decode() for member in await self.client.zrange(key, 0, -1)]
        return sorted(member.decode() for member in await self.client.smembers(key))

    async def log(self, turn: str = T1) -> list[bytes]:
        """The events of a turn's log."""
        return [fields[b"data"] for _, fields in await self.client.xrange(self.keys.events(turn))]

    async def transcript(self, target: Target = CHOSEN) -> list[bytes]:
        """The messages of a conversation's transcript."""
        messages: list[bytes] = await self.client.lrange(self.keys.messages(target.cid), 0, -1)
        return messages

    async def ttl_ms(self, key: str) -> int:
        """How long a key lives: -1 for ever, -2 it does not exist."""
        return int(await self.store.execute("PTTL", key))

    async def snapshot(self) -> Snapshot:
        """All keys, with their values and whether they expire."""
        return await snapshot(self.client, ttl=True)

    @contextlib.asynccontextmanager
    async def unchanged(self, slack_ms: int = 0) -> AsyncIterator[None]:
        """Whatever happens in the block leaves every key as it was; times may move by the slack."""
        before = await self.snapshot()
        yield
        assert differences(before, await self.snapshot(), slack_ms=slack_ms) == []

    @contextlib.asynccontextmanager
    async def mailbox(self, replica: str = "r2") -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
        """The block gets a call that returns the messages which reached the replica's mailbox since the last."""
        async with self.client.pubsub() as subscription:
            await subscription.subscribe(MAILBOXES + replica)

            async def received() -> list[str]:
                await self.client.publish(MAILBOXES + replica, "end")
                found: list[str] = []
                while "end" not in found:
                    message = await subscription.get_message(ignore_subscribe_messages=True, timeout=5)
                    if message is not None:
                        found.append(message["data"].decode())
                return found[:-1]

            yield received


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
