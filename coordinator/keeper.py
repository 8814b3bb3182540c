"""Keeps this replica's leases: renews them from a thread of its own, and says when one is lost.

The thread has its own event loop and its own connection, so that a busy loop of the turns cannot let their leases end.
"""

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from time import monotonic
from types import TracebackType
from typing import Self

from coordinator.errors import CoordinatorError
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Lineage, Store

_log = logging.getLogger(__name__)

_CHUNK = 200  # turns a renewal call carries: about 1 ms of the server's time
_RETRY_S = 0.2  # a failed renewal is tried again this soon: many times within a lease
_LOOP_LEASES = 4  # leases after which a loop that stopped ticking is taken for dead


class Kept:
    """A lease under the keeper's care. All times are `time.monotonic()` seconds."""

    __slots__ = ("deadline", "ends_at", "lost", "tenant", "turn")

    def __init__(self, tenant: str, turn: str, deadline: float, ends_at: float, lost: Callable[[str], None]) -> None:
        self.tenant = tenant
        self.turn = turn
        self.deadline = deadline
        """Until when the holder may count on the lease."""
        self.ends_at = ends_at
        """The turn's limit: not renewed beyond."""
        self.lost = lost
        """Called once, in the loop of the turns, with `lost`, `cancelled` or `interrupted`."""


class Keeper:
    """Renews every third of a lease, all turns of a tenant in one call."""

    def __init__(self, url: str, settings: Settings, lineage: Lineage | None = None) -> None:
        self._url = url
        self._settings = settings
        self._lineage = lineage or Lineage()
        self._lineage.on_change(self._store_changed)
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
        self._behind: set[str] = set()  # tenants whose leases were not renewed since the store changed
        self._changed_at = 0.0
        self._caught_up = asyncio.Event()
        self._turns_loop: asyncio.AbstractEventLoop | None = None
        self._loop_ticked = monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry: asyncio.Event | None = None
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lease-keeper", daemon=True)
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._turns_loop = asyncio.get_running_loop()
        self._thread.start()
        await self._turns_loop.run_in_executor(None, self._ready.wait, 5)
        self._ticker = asyncio.create_task(self._tick(), name="keeper-ticker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticker:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        self._stopping = True
        self.hurry()
        if self._turns_loop:
            await self._turns_loop.run_in_executor(None, self._thread.join, 5)

    @property
    def _lease_s(self) -> float:
        return self._settings.lease_ms / 1000  # the fleet may agree on another while this runs

    def keep(self, kept: Kept) -> None:
        """Takes a lease into care."""
        with self._lock:
            self._kept[kept.turn] = kept
            granted_before = kept.deadline - self._lease_s <= self._changed_at
            if granted_before:
                self._behind.add(kept.tenant)
        if granted_before:
            self.hurry()

    def release(self, turn: str) -> None:
        """Lets go of it: nothing is renewed or reported from here on."""
        with self._lock:
            self._kept.pop(turn, None)

    def hurry(self) -> None:
        """Renews now: one of the turns may have been asked to stop."""
        if self._loop and self._hurry:
            self._loop.call_soon_threadsafe(self._hurry.set)

    def _store_changed(self) -> None:
        """The store is another one than before and may not know the leases: called in whichever thread noticed."""
        with self._lock:
            self._behind = {kept.tenant for kept in self._kept.values()}
            self._changed_at = monotonic()
        self.hurry()

    async def settled(self, tenant: str) -> None:
        """Waits until the tenant's leases were renewed, or found lost, on the store as it is now: nothing new may be
        admitted before. To be called in the loop of the turns."""
        while tenant in self._behind:
            self._caught_up.clear()
            if tenant in self._behind:
                await self._caught_up.wait()

    def interrupt_all(self) -> None:
        """Tells every holder that its turn is over: this replica ends."""
        self._report(self._snapshot(), "interrupted")

    @property
    def count(self) -> int:
        """Leases in care."""
        return len(self._kept)

    async def _tick(self) -> None:
        while True:
            self._loop_ticked = monotonic()
            await asyncio.sleep(self._lease_s / 10)

    def _main(self) -> None:
        asyncio.run(self._keep_all())

    async def _keep_all(self) -> None:
        self._loop, self._hurry = asyncio.get_running_loop(), asyncio.Event()
        # A call that hangs may not hold up the next round for as long as a lease.
        patience_s = min(self._settings.patience_ms / 1000, self._lease_s / 3)
        async with Store(self._url, self._settings, self._lineage, patience_s=patience_s) as store:
            steps = Steps(store, self._settings)
            self._ready.set()
            expiry = asyncio.create_task(self._watch_deadlines())
            try:
                while not self._stopping:
                    self._hurry.clear()
                    began = monotonic()
                    # A third of a lease from one sending to the next: an answer that was long in coming is no pause.
                    renewed = await self._renew_all(steps)
                    next_at = began + self._lease_s / 3 if renewed else monotonic() + min(_RETRY_S, self._lease_s / 10)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), max(next_at - monotonic(), 0.01))
            finally:
                expiry.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await expiry

    def _snapshot(self) -> list[Kept]:
        with self._lock:
            return list(self._kept.values())

    async def _renew_all(self, steps: Steps) -> bool:
        """Renews what is kept. Returns False when a call failed and wants to be made again soon."""
        now = monotonic()
        if now - self._loop_ticked > _LOOP_LEASES * self._lease_s:
            _log.error("the loop of the turns has not ticked for %d leases: nothing is renewed", _LOOP_LEASES)
            return True
        tenants: dict[str, list[Kept]] = defaultdict(list)
        for kept in self._snapshot():
            # Past its deadline a turn is over, also when nobody took its lease: one that slept is not revived.
            if kept.deadline > now and kept.ends_at > now:
                tenants[kept.tenant].append(kept)
        answers = await asyncio.gather(*(self._renew_tenant(steps, tenant, turns) for tenant, turns in tenants.items()))
        self._catch_up(now, self._behind - tenants.keys())
        return all(answers)

    async def _renew_tenant(self, steps: Steps, tenant: str, turns: list[Kept]) -> bool:
        began = monotonic()
        chunks = (turns[start : start + _CHUNK] for start in range(0, len(turns), _CHUNK))
        renewed = all(await asyncio.gather(*(self._renew(steps, tenant, chunk) for chunk in chunks)))
        if renewed:
            self._catch_up(began, {tenant})
        return renewed

    def _catch_up(self, began: float, tenants: set[str]) -> None:
        """Their leases were renewed in a round that began then."""
        with self._lock:
            if began <= self._changed_at or not tenants & self._behind:
                return
            self._behind -= tenants
        if self._turns_loop:
            with contextlib.suppress(RuntimeError):  # the loop of the turns is closed: nobody waits any more
                self._turns_loop.call_soon_threadsafe(self._caught_up.set)

    async def _renew(self, steps: Steps, tenant: str, turns: list[Kept]) -> bool:
        sent = monotonic()
        try:
            lost, cancelled = await steps.turn_renew(tenant, [kept.turn for kept in turns])
        except CoordinatorError as error:
            _log.warning("renewal of %d turns failed and is tried again: %s", len(turns), error)
            return False
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the renewal of all turns
            _log.exception("renewal of %d turns failed and is tried again", len(turns))
            return False
        for kept in turns:
            if kept.turn not in lost | cancelled:
                kept.deadline = sent + self._lease_s
        self._report((kept for kept in turns if kept.turn in cancelled), "cancelled")
        self._report((kept for kept in turns if kept.turn in lost), "lost")
        return True

    async def _watch_deadlines(self) -> None:
        while True:
            now, kept = monotonic(), self._snapshot()
            self._report((one for one in kept if one.deadline <= now), "lost")
            # A lease taken meanwhile ends later than a third of a lease from now, so it cannot be missed.
            nearest = min((one.deadline for one in kept if one.deadline > now), default=now + self._lease_s)
            await asyncio.sleep(min(max(nearest - monotonic(), 0.01), self._lease_s / 3))

    def _report(self, turns: Iterable[Kept], reason: str) -> None:
        for kept in turns:
            with self._lock:
                known = self._kept.pop(kept.turn, None)
            if known and self._turns_loop:
                with contextlib.suppress(RuntimeError):  # the loop of the turns is closed: nobody is left to tell
                    self._turns_loop.call_soon_threadsafe(known.lost, reason)
