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
from coordinator.store import Store

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

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
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

    def release(self, turn: str) -> None:
        """Lets go of it: nothing is renewed or reported from here on."""
        with self._lock:
            self._kept.pop(turn, None)

    def hurry(self) -> None:
        """Renews now: one of the turns may have been asked to stop."""
        if self._loop and self._hurry:
            self._loop.call_soon_threadsafe(self._hurry.set)

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
        async with Store(self._url, self._settings) as store:
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
        calls = [
            self._renew(steps, tenant, turns[start : start + _CHUNK])
            for tenant, turns in tenants.items()
            for start in range(0, len(turns), _CHUNK)
        ]
        return all(await asyncio.gather(*calls))

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
