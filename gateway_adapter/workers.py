"""Background work: what was accepted is run here, and what a dead replica accepted is taken over, once."""

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

from aiohttp import web

from coordinator import Coordinator, CoordinatorError, Draining, StoreUnavailable, TurnEnded, TurnView
from gateway_adapter import context, replays
from gateway_adapter.errors import INTERNAL, answer_of
from gateway_adapter.event_stream import NoClient
from gateway_adapter.responses.dialect import ResponsesDialect
from gateway_adapter.responses.stored import asked_of
from gateway_adapter.running import run

_log = logging.getLogger(__name__)

_CLAIM_EVERY_S = 1.0
_CLOSE_S = 2.0


class Workers:
    """The background turns of this replica."""

    def __init__(self, app: web.Application, coordinator: Coordinator) -> None:
        self._app = app
        self._coordinator = coordinator
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._claimer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._claimer = asyncio.create_task(self._claim(), name="claimer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claimer:
            self._claimer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._claimer
        # Those that run have been interrupted; what was only accepted stays so, for another replica.
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)

    def start(self, tenant: str, view: TurnView) -> None:
        """Runs an accepted turn, as soon as its conversation is free; one that is on its way here already goes on."""
        if view.turn not in self._tasks:
            task = self._tasks[view.turn] = asyncio.create_task(self._run(tenant, view), name=f"work {view.turn}")
            task.add_done_callback(lambda _: self._tasks.pop(view.turn))

    async def _run(self, tenant: str, view: TurnView) -> None:
        try:
            asked = asked_of(tenant, view)
            async with self._coordinator.resume(tenant, view) as turn:
                settings = self._app[context.SETTINGS]
                dialect = ResponsesDialect(asked, turn, settings, {}, stream=True, accepted=view)
                await run(self._app, turn, dialect, NoClient(), {}, accepted=True)
        except (Draining, StoreUnavailable) as error:
            _log.info("work is left to other replicas: %s", error)
        except TurnEnded as error:
            _log.info("work has ended: %s", error)
        except CoordinatorError as error:
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.give_up(tenant, view, replays.result_of(answer_of(error) or INTERNAL))
        except Exception:  # noqa: BLE001 - whatever it is, the work must not stay half done
            _log.exception("background work failed")
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.give_up(tenant, view, replays.result_of(INTERNAL))

    async def _claim(self) -> None:
        while True:
            await asyncio.sleep(_CLAIM_EVERY_S)
            try:
                for tenant in await self._coordinator.tenants():
                    for view in await self._coordinator.claim(tenant):
                        self.start(tenant, view)
            except CoordinatorError as error:
                _log.debug("taking over was put off: %s", error)


WORKERS = web.AppKey("workers", Workers)
