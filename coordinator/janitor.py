"""What keeps a store small: settling dead turns, finishing erasures, dropping what is past its retention.

Every step is bounded and may be interrupted anywhere; another replica's janitor goes on where it stopped.
"""

import asyncio
import contextlib
import logging
import random
from types import TracebackType
from typing import Self

from coordinator.errors import CoordinatorError
from coordinator.keys import TENANTS, TenantKeys
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Store
from coordinator.views import Views

_log = logging.getLogger(__name__)

_EVERY_S = 60
_BATCH = 100  # turns or conversations a script call handles: about a millisecond of the server's time
_DEAD_FOR_MS = 60_000  # a turn whose lease ended this long ago is settled although nobody asked for it


class Janitor:
    """Cleans a little every minute, all tenants of the store."""

    def __init__(self, store: Store, steps: Steps, views: Views, settings: Settings) -> None:
        self._store = store
        self._steps = steps
        self._views = views
        self._settings = settings
        self._tenants: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="janitor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def served(self, tenant: str) -> bool:
        """Remembers a tenant. Returns whether it is new here, so that somebody writes it down."""
        new = tenant not in self._tenants
        self._tenants.add(tenant)
        return new

    async def write_down(self) -> None:
        """Puts the tenants served here into the store's list; it may have lost them."""
        if self._tenants:
            await self._store.execute("SADD", TENANTS, *sorted(self._tenants))

    async def step(self, tenant: str, horizon_ms: int | None = None) -> int:
        """One bounded round for a tenant. Returns how many conversations were dropped."""
        await self._settle_dead(tenant)
        await self._finish_erasures(tenant)
        return await self._prune(tenant, self._settings.session_ttl_ms if horizon_ms is None else horizon_ms)

    async def erase(self, tenant: str, cid: str) -> None:
        """Erases all that retired sessions of the conversation left, in bounded steps."""
        keys = TenantKeys(tenant)
        for key, receipts in ((keys.leftovers(cid), False), (keys.purging(cid), True)):
            left = 1
            while left:
                turns = await self._store.execute("ZRANGE", key, 0, _BATCH - 1)
                left = await self._steps.session_erase(
                    tenant, cid, [turn.decode() for turn in turns], receipts=receipts
                )

    async def _run(self) -> None:
        while True:
            # Spread over the minute, so that replicas started together do not clean together.
            await asyncio.sleep(_EVERY_S * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            try:
                await self.write_down()
                for tenant in await self._views.tenants():
                    await self.step(tenant)
            except CoordinatorError as error:
                _log.warning("cleaning was put off by a minute: %s", error)

    async def _settle_dead(self, tenant: str) -> None:
        keys = TenantKeys(tenant)
        before_ms = (await self._steps.synchronise(keys.running)).now() - _DEAD_FOR_MS
        dead = await self._store.execute("ZRANGEBYSCORE", keys.running, "-inf", before_ms, "LIMIT", 0, _BATCH)
        stopped = await self._store.execute("SRANDMEMBER", keys.cancelling, _BATCH)
        for turn in {*dead, *stopped}:
            if await self._views.turn(tenant, turn.decode()) is None:
                await self._store.execute("ZREM", keys.running, turn)
                await self._store.execute("SREM", keys.cancelling, turn)

    async def _finish_erasures(self, tenant: str) -> None:
        for cid in await self._store.execute("SRANDMEMBER", TenantKeys(tenant).erasing, _BATCH):
            await self.erase(tenant, cid.decode())

    async def _prune(self, tenant: str, horizon_ms: int) -> int:
        keys = TenantKeys(tenant)
        before_ms = (await self._steps.synchronise(keys.running)).now() - horizon_ms + 1
        count = 0
        for index in (keys.sessions, keys.tombstones):
            cids = await self._store.execute("ZRANGEBYSCORE", index, "-inf", before_ms, "LIMIT", 0, _BATCH)
            if cids:
                count += await self._steps.prune(tenant, horizon_ms, [cid.decode() for cid in cids])
        return count
