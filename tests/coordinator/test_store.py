"""The way to the store: calls that share it, none left behind, none in the way of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.settings import Settings
from coordinator.store import Store
from coordinator.store.lane import Lane
from tests.support.proxy import DropReplyProxy
from tests.support.servers import StoreServer
from tests.support.waiting import until


@pytest.fixture
async def store(store_server: StoreServer) -> AsyncIterator[Store]:
    """A store."""
    async with Store(store_server.url, Settings(replica="asking")) as opened:
        yield opened


async def test_no_call_is_left_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: a call that is made in the very step in which the last ones were all answered is sent at once."""
    real, arrived, together = Lane._exchange, list[int](), asyncio.Event()

    async def at_once(lane: Lane, batch: list[Any]) -> None:
        await real(lane, batch)
        arrived.append(len(batch))
        await together.wait()

    async def ask(number: int) -> Any:
        await store.execute("ECHO", str(number))
        await together.wait()
        return await store.execute("ECHO", f"{number} again")

    monkeypatch.setattr(Lane, "_exchange", at_once)
    asking = [asyncio.create_task(ask(number)) for number in range(16)]
    await until(lambda: len(arrived) == 2)
    together.set()
    replies = await asyncio.wait_for(asyncio.gather(*asking), 1)
    assert sum(reply.endswith(b"again") for reply in replies) == 16


async def test_a_cancelled_call_leaves_its_reply_to_nobody(store_server: StoreServer) -> None:
    """B68: a thousand calls, half of them cancelled at all moments: every reply reaches its own caller."""
    async with DropReplyProxy(store_server.port) as proxy, Store(proxy.url, Settings()) as store:
        await store.execute("PING")
        proxy.delay_ms = 2
        checked = 0

        async def ask(number: int) -> None:
            nonlocal checked
            assert await store.execute("ECHO", f"call {number}") == b"call %d" % number
            checked += 1

        for start in range(0, 1_000, 50):
            tasks = [asyncio.create_task(ask(number)) for number in range(start, start + 50)]
            await asyncio.sleep(0.0003 * (start // 50))
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks)
            assert not [task for task in tasks if not task.cancelled() and task.exception()]
        assert checked >= 500


async def test_few_connections_carry_everything(store: Store, store_server: StoreServer) -> None:
    """B44: a thousand calls at once need two connections, and leave no more behind."""
    await store.execute("PING")
    replies = await asyncio.gather(*(store.execute("ECHO", str(number)) for number in range(1_000)))
    assert replies == [str(number).encode() for number in range(1_000)]
    clients = [line for line in store_server.cli("CLIENT", "LIST").splitlines() if b"name=asking" in line]
    assert 1 <= len(clients) <= 2
