"""Resets, rests, deletions, pruning, restarts and total loss in random order, against a model in plain Python."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from coordinator import (
    Address,
    Coordinator,
    CoordinatorError,
    Daily,
    Declared,
    Explicit,
    Implicit,
    LeaseLost,
    SessionBusy,
    SessionNotFound,
    Settings,
    StaleGeneration,
    TurnCancelled,
)
from tests.coordinator.hosting import ANSWER, HOUR_MS, REASONS, TENANT, Host, Said, asked, said
from tests.support.servers import StoreServer

EXAMPLES, STEPS = 10, 50

_T = TypeVar("_T")

ADDRESSES: list[Address] = [
    Declared("telegram", "a"),
    Declared("discord", "a"),
    Declared("telegram", "b"),
    Implicit((b"hi",)),
]
addresses = st.sampled_from(ADDRESSES)
declared = st.sampled_from(ADDRESSES[:3])
replicas = st.sampled_from([0, 1])


@dataclass
class Conversation:
    """What the model knows of one: which generation is current, and who is in it."""

    generation: int = 0
    """0: nothing is known of it, or nothing is left."""
    session_id: str | None = None
    """None: no turn has opened the session of this generation yet."""
    announced: str | None = None
    """The id that the last reset told."""
    rested_h: int = 0
    turns: list[Running] = field(default_factory=list)
    """Those that may still commit."""

    def move(self, announced: str | None = None) -> None:
        """A boundary: whoever runs is of the past."""
        self.generation += 1
        self.session_id, self.announced, self.rested_h = None, announced, 0
        self.turns.clear()

    def forget(self) -> None:
        """Nothing is left of it."""
        self.generation, self.session_id, self.announced, self.rested_h = 0, None, None, 0
        self.turns.clear()


@dataclass(eq=False)
class Running:
    """A turn in flight, in a task of its own."""

    address: Address
    replica: int
    told: Said
    over: asyncio.Event
    task: asyncio.Task[None]


class Generations(RuleBasedStateMachine):
    """Two replicas: the first with an idle time of an hour, the second with a daily boundary twelve hours ago."""

    server: StoreServer
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.server.flushall()
        self.model: dict[Address, Conversation] = {address: Conversation() for address in ADDRESSES}
        self.places: dict[tuple[str, str], tuple[int, Address, int]] = {}
        """Every session id and scope ever told, and its place: how many losses before it, conversation, generation."""
        self.losses = 0
        self.resets: dict[str, Any] = {}
        self.flying: list[Running] = []
        seconds, _ = self.server.cli("TIME")
        at = (int(seconds) // 60 - 12 * 60) % (24 * 60)
        self.policies: list[dict[str, Any]] = [
            {"idle_ms": HOUR_MS},
            {"daily": Daily.parse(f"{at // 60:02}:{at % 60:02}@UTC")},
        ]
        self.stacks = [AsyncExitStack(), AsyncExitStack()]
        self.hosts = [self.run(self.open(number)) for number in (0, 1)]

    def run(self, doing: Coroutine[Any, Any, _T]) -> _T:
        """Has the loop do this, and whatever else is under way meanwhile."""
        return self.runner.run(doing)

    async def open(self, number: int) -> Host:
        """Starts a replica."""
        made = Settings(turn_policy="reject", patience_ms=10_000, **self.policies[number])
        opened = Coordinator.open(self.server.store_url, made)
        return Host(await self.stacks[number].enter_async_context(opened), self.server)

    def teardown(self) -> None:
        """Everything ends."""

        async def close() -> None:
            for turn in self.flying:
                turn.task.cancel()
            await asyncio.gather(*(turn.task for turn in self.flying), return_exceptions=True)
            for stack in self.stacks:
                await stack.aclose()

        self.run(close())
        self.runner.close()

    def place(self, address: Address, told: Said) -> None:
        """A session id or a scope is told of one generation only, ever."""
        here = (self.losses, address, told.generation)
        for kind, value in (("id", told.session_id), ("scope", told.scope)):
            assert self.places.setdefault((kind, value), here) == here
        same = {value for (kind, value), where in self.places.items() if kind == "id" and where == here}
        # Dropped whole by pruning, a conversation that is not declared counts from one again, under other names.
        assert len(same) == 1 or isinstance(address, Implicit)

    @rule(target=running, address=addresses, replica=replicas)
    def begin(self, address: Address, replica: int) -> Running | None:
        """A turn asks: it is in the generation that the model says, or busy."""
        model = self.model[address]
        exclusive = isinstance(address, Declared)
        if exclusive and model.turns:
            with pytest.raises(SessionBusy):
                self.run(self.hosts[replica].say(address))
            return None
        if exclusive and model.session_id and model.rested_h > (0 if replica == 0 else 12):
            model.move()
        turn = self.run(self.fly(address, replica))
        told = turn.told
        assert told.generation == max(model.generation, 1)
        assert model.session_id in (None, told.session_id)
        assert model.announced in (None, told.session_id)
        self.place(address, told)
        model.generation, model.session_id, model.announced, model.rested_h = told.generation, told.session_id, None, 0
        model.turns.append(turn)
        self.flying.append(turn)
        return turn

    async def fly(self, address: Address, replica: int) -> Running:
        """A turn that is granted, and stays under way."""
        granted: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def hold() -> None:
            async with self.hosts[replica].coordinator.turn(asked(address)) as turn:
                granted.set_result(said(turn))
                await over.wait()
                await turn.finish(ANSWER)

        task = asyncio.create_task(hold())
        await asyncio.wait({task, granted}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return Running(address, replica, await granted, over, task)

    @rule(turn=consumes(running))
    def finish(self, turn: Running | None) -> None:
        """A turn of the current generation commits; one of an earlier generation never does."""
        if turn is None or turn not in self.flying:
            return
        self.flying.remove(turn)
        turn.over.set()
        model = self.model[turn.address]
        if turn in model.turns:
            model.turns.remove(turn)
            self.run(self.ended(turn))
            model.rested_h = 0
        else:
            with pytest.raises((StaleGeneration, LeaseLost, TurnCancelled)):
                self.run(self.ended(turn))

    @staticmethod
    async def ended(turn: Running) -> None:
        """What became of a turn."""
        await turn.task

    @rule(address=addresses, replica=replicas, reason=st.sampled_from(REASONS), expects=st.booleans())
    def reset(self, address: Address, replica: int, reason: str, expects: bool) -> None:
        """The next generation, or nothing where nothing is."""
        model, coordinator = self.model[address], self.hosts[replica].coordinator
        target: Declared | Explicit
        if isinstance(address, Declared):
            target = address
        elif model.session_id or model.announced:
            target = Explicit(model.session_id or model.announced or "")
        else:
            return
        expected = model.generation if expects else None
        doing = coordinator.reset_session(TENANT, target, reason=reason, expected=expected)
        if not model.generation:
            with pytest.raises(SessionNotFound):
                self.run(doing)
            return
        done = self.run(doing)
        assert done.generation == model.generation + 1
        assert done.ended_session_id == model.session_id
        assert set(done.stopped) <= {*done.stopped} if model.turns else done.stopped == []
        assert len(done.stopped) == len(model.turns)
        model.move(done.session_id)

    @rule(address=declared, replica=replicas, wrong=st.sampled_from([-1, 1]))
    def reset_in_vain(self, address: Declared, replica: int, wrong: int) -> None:
        """What expects another generation moves nothing."""
        expected = self.model[address].generation + wrong
        with pytest.raises((StaleGeneration, SessionNotFound)):
            self.run(self.hosts[replica].coordinator.reset_session(TENANT, address, expected=expected))

    @rule(address=declared, replica=replicas, key=st.sampled_from(["k1", "k2", "k3"]))
    def reset_with_key(self, address: Declared, replica: int, key: str) -> None:
        """Under one key the same answer, however much later: one bump."""
        model, name = self.model[address], f"{address}:{key}"
        doing = self.hosts[replica].coordinator.reset_session(TENANT, address, idempotency_key=name)
        if name in self.resets:
            done = self.run(doing)
            assert (done.generation, done.session_id) == self.resets[name]
        elif not model.generation:
            with pytest.raises(SessionNotFound):
                self.run(doing)
        else:
            done = self.run(doing)
            assert done.generation == model.generation + 1
            self.resets[name] = (done.generation, done.session_id)
            model.move(done.session_id)

    @rule(address=declared, hours=st.sampled_from([2, 13, 50, -1]))
    def rest(self, address: Declared, hours: int) -> None:
        """Time passes in one conversation, or its clock steps back; whatever runs there is not disturbed by that."""
        model = self.model[address]
        if model.session_id:
            model.rested_h = hours
            self.run(self.hosts[0].rest(hours * HOUR_MS, address))

    @rule(address=addresses, replica=replicas, force=st.booleans())
    def delete(self, address: Address, replica: int, force: bool) -> None:
        """The id is gone for good, and the generation moves on; a busy one is refused unless forced."""
        model = self.model[address]
        if model.session_id is None:
            return
        doing = self.hosts[replica].coordinator.delete_session(TENANT, model.session_id, force=force)
        if model.turns and not force:
            with pytest.raises(SessionBusy):
                self.run(doing)
            return
        assert len(self.run(doing)) == len(model.turns)
        model.move()

    @rule(replica=replicas)
    def prune(self, replica: int) -> None:
        """Nothing is young enough to stay but what is in use: declared ones move on and count on, others are dropped."""
        self.run(self.hosts[replica].coordinator.prune(TENANT, 0))
        for address, model in self.model.items():
            if model.turns:
                continue
            if isinstance(address, Implicit):
                model.forget()
            elif model.session_id:
                model.move()

    @rule(replica=replicas)
    def restart(self, replica: int) -> None:
        """A replica ends, its turns with it, and another one takes its place."""

        async def restart() -> Host:
            ending = [turn for turn in self.flying if turn.replica == replica]
            for turn in ending:
                turn.task.cancel()
            await asyncio.gather(*(turn.task for turn in ending), return_exceptions=True)
            await self.stacks[replica].aclose()
            self.stacks[replica] = AsyncExitStack()
            return await self.open(replica)

        self.hosts[replica] = self.run(restart())
        for turn in [turn for turn in self.flying if turn.replica == replica]:
            self.flying.remove(turn)
            model = self.model[turn.address]
            if turn in model.turns:
                model.turns.remove(turn)
                model.rested_h = 0

    @rule()
    @precondition(lambda self: self.losses < 3)
    def lose_everything(self) -> None:
        """The store comes back empty: nothing that was told before is told again."""
        self.server.flushall()
        self.losses += 1
        self.resets.clear()
        for model in self.model.values():
            model.forget()

    @rule(address=addresses, replica=replicas)
    def ask_for_the_past(self, address: Address, replica: int) -> None:
        """No id of an earlier generation leads anywhere."""
        current = self.model[address].session_id, self.model[address].announced
        past = [value for (kind, value), where in self.places.items() if kind == "id" and where[1] == address]
        for session_id in [each for each in past if each not in current][-3:]:
            with pytest.raises(SessionNotFound):
                self.run(self.hosts[replica].say(Explicit(session_id)))

    @invariant()
    def what_is_listed_is_what_is_current(self) -> None:
        """No session is listed but those that the model knows, and each in its generation."""
        views = self.run(self.hosts[0].coordinator.sessions(TENANT))
        assert {(view.id, view.generation) for view in views} == {
            (model.session_id, model.generation) for model in self.model.values() if model.session_id
        }


@pytest.mark.timeout(60)
def test_generations_against_a_model(server: StoreServer) -> None:
    """C5, C6, E2, J12: session ids and scopes never repeat, generations only grow between losses, and an in-flight turn
    of an earlier generation never commits."""
    machine = type("Machine", (Generations,), {"server": server})
    checks = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_machine(machine, checks)


def run_machine(machine: type[RuleBasedStateMachine], checks: settings) -> None:
    """Runs it as hypothesis does, outside of the test case that it would make."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=checks)  # type: ignore[no-untyped-call]


def test_a_stale_turn_is_an_error_of_the_library() -> None:
    """B62: what an overtaken holder is told can be caught as one of the library's own errors."""
    assert all(issubclass(kind, CoordinatorError) for kind in (StaleGeneration, LeaseLost, TurnCancelled))
