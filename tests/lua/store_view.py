"""What is in a store: leases, queues, transcripts, mailboxes, and whether a call changed anything."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from redis.asyncio import Redis

from coordinator.identity import Explicit, Target, target_of
from coordinator.keys import MAILBOXES, TenantKeys
from coordinator.store import Store
from tests.support.snapshot import Snapshot, differences, snapshot

TENANT = "acme"
CHOSEN = target_of(TENANT, Explicit("chat-42"))
"""The conversation of an id that a client chose."""
T1, T2, T3, T4 = (32 * digit for digit in "1234")
"""Turns."""
HOUR_MS = 3_600_000


class StoreView:
    """Looks into the store, and lets time pass in it by moving deadlines.

    `client` is a connection of its own, to look and to interfere with plain commands.
    """

    def __init__(self, store: Store, client: Redis) -> None:
        self.store = store
        self.client = client
        self.keys = TenantKeys(TENANT)

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

    async def end_acceptance(self, *turns: str) -> None:
        """Lets nobody vouch for accepted work any more, as time would."""
        for turn in turns:
            assert await self.store.execute("ZADD", self.keys.accepted, "XX", "CH", await self.now_ms() - 1, turn) == 1

    async def rest(self, target: Target, rested_ms: int) -> None:
        """Lets that much time pass since the conversation's last activity."""
        key = self.keys.conversation(target.cid)
        await self.store.execute("HSET", key, "active_ms", await self.now_ms() - rested_ms)

    async def step_clock_back(self) -> None:
        """Leaves every deadline where it would be had the store's clock stepped back by an hour."""
        for key in (self.keys.running, self.keys.waiting, self.keys.accepted):
            for turn in await self.store.execute("ZRANGE", key, 0, -1):
                await self.store.execute("ZINCRBY", key, HOUR_MS, turn)

    async def lease_of(self, turn: str) -> int | None:
        """What is left of a turn's lease, in ms; None when it has none."""
        return await self._left_ms(self.keys.running, turn)

    async def vouch_of(self, turn: str) -> int | None:
        """For how long a waiter is vouched for, in ms; None when it does not wait."""
        return await self._left_ms(self.keys.waiting, turn)

    async def acceptance_of(self, turn: str) -> int | None:
        """For how long accepted work is vouched for, in ms; None when it is not waiting to be started."""
        return await self._left_ms(self.keys.accepted, turn)

    async def _left_ms(self, key: str, turn: str) -> int | None:
        score = await self.store.execute("ZSCORE", key, turn)
        return None if score is None else int(float(score)) - await self.now_ms()

    async def fields(self, key: str) -> dict[bytes, bytes]:
        """The fields of a hash."""
        return cast("dict[bytes, bytes]", await self.client.hgetall(key))

    async def hash(self, key: str) -> dict[str, str]:
        """The fields of a hash that holds text."""
        fields = await self.fields(key)
        return {name.decode(): value.decode() for name, value in fields.items()}

    async def members(self, key: str) -> list[str]:
        """The members of a set, sorted, or of a sorted set, in order."""
        if await self.client.type(key) == b"zset":
            return [member.decode() for member in await self.store.execute("ZRANGE", key, 0, -1)]
        return sorted(member.decode() for member in await self.store.execute("SMEMBERS", key))

    async def score(self, key: str, member: str) -> int:
        """The score of a member of a sorted set; it must be there."""
        score = await self.client.zscore(key, member)
        assert score is not None
        return int(score)

    async def log(self, turn: str = T1) -> list[bytes]:
        """The events of a turn's log."""
        return [data for _, data in await self.entries(turn)]

    async def entries(self, turn: str = T1) -> list[tuple[bytes, bytes]]:
        """The same with the ids of the entries."""
        entries = cast("list[Any]", await self.client.xrange(self.keys.events(turn)))
        return [(entry, fields[b"data"]) for entry, fields in entries]

    async def transcript(self, target: Target = CHOSEN) -> list[bytes]:
        """The messages of a conversation's transcript."""
        return cast("list[bytes]", await self.client.lrange(self.keys.messages(target.cid), 0, -1))

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
    async def mailbox(
        self, replica: str = "r2", *, channel: str = ""
    ) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
        """The block gets a call that returns the messages which reached the replica's mailbox, or that channel, since
        the last."""
        channel = channel or MAILBOXES + replica
        async with self.client.pubsub() as subscription:
            await subscription.subscribe(channel)

            async def received() -> list[str]:
                await self.client.publish(channel, "end")
                found: list[str] = []
                while "end" not in found:
                    message = await subscription.get_message(ignore_subscribe_messages=True, timeout=5)
                    if message is not None:
                        found.append(message["data"].decode())
                return found[:-1]

            yield received
