"""Resets, rests, deletions, pruning, restarts and total loss in random order, against a model in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator import (
    Address,
    Coordinator,
    Declared,
    Explicit,
    HostSession,
    Implicit,
    LeaseLost,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    TurnCancelled,
)
from tests.coordinator.generations import Conversation, Replicas, Running
from tests.coordinator.hosting import HARMLESS, HOUR_MS, REASONS, TENANT
from tests.support.servers import StoreServer

EXAMPLES, STEPS = 10, 50

DECLARED = [Declared("telegram", "a"), Declared("discord", "a"), Declared("telegram", "b")]
ADDRESSES: list[Address] = [*DECLARED, Implicit((b"hi",))]
addresses, declared = st.sampled_from(ADDRESSES), st.sampled_from(DECLARED)
replicas = st.sampled_from([0, 1])
host_ids = st.sampled_from([f"p{number}" for number in range(6)])


@dataclass
class Bound:
    """A host's id, and where it was bound."""

    place: tuple[Address, int, int]
    record: HostSession
    scope: str


class Generations(RuleBasedStateMachine):
    """Every rule does something on one of the replicas and says what must come of it."""

    server: StoreServer
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.replicas = Replicas(self.server)
        self.model = {address: Conversation(address) for address in ADDRESSES}
        self.told: dict[str, tuple[Address, int, int]] = {}
        """Every session id and scope ever told, and its place."""
        self.names: dict[object, str] = {}
        """The one id and the one scope of every place."""
        self.bound: dict[str, Bound] = {}
        self.resets: dict[str, tuple[int, str]] = {}
        self.losses = 0

    def teardown(self) -> None:
        """Everything ends."""
        self.replicas.close()

    def on(self, replica: int) -> Coordinator:
        """A replica's coordinator."""
        return self.replicas.hosts[replica].coordinator

    def tell(self, place: tuple[Address, int, int], kind: str, name: str) -> None:
        """What is told now: of one place only, ever, and the only one of its kind there."""
        assert self.told.setdefault(name, place) == place
        assert self.names.setdefault((place, kind), name) == name

    @rule(target=running, address=addresses, replica=replicas)
    def begin(self, address: Address, replica: int) -> Running | None:
        """A turn asks: it is in the generation that the model says, or busy."""
        model = self.model[address]
        if isinstance(address, Declared) and model.turns:
            with pytest.raises(SessionBusy):
                self.replicas.begin(address, replica)
            return None
        if model.due(replica):
            model.move()
        turn = self.replicas.begin(address, replica)
        told, expected = turn.told, model.session_id or model.announced
        assert told.generation == max(model.generation, 1)
        assert expected in (None, told.session_id)
        model.generation = told.generation
        model.opened(told.session_id)
        model.turns.append(turn)
        self.tell(model.place, "id", told.session_id)
        self.tell(model.place, "scope", told.scope)
        return turn

    @rule(turn=consumes(running))
    def finish(self, turn: Running | None) -> None:
        """A turn of the current generation commits; one of an earlier generation never does."""
        if turn not in self.replicas.flying:
            return
        model = self.model[turn.address]
        if turn in model.turns:
            self.replicas.finish(turn)
            model.turns.remove(turn)
            model.rested_h = 0
        else:
            with pytest.raises((StaleGeneration, LeaseLost, TurnCancelled)):
                self.replicas.finish(turn)

    @rule(address=addresses, replica=replicas, reason=st.sampled_from(REASONS), expects=st.booleans())
    def reset(self, address: Address, replica: int, reason: str, expects: bool) -> None:
        """The next generation, or nothing where nothing is."""
        model = self.model[address]
        target = address if isinstance(address, Declared) else Explicit(model.session_id or model.announced or "none")
        expected = model.generation if expects else None
        if target == Explicit("none"):
            return
        assert isinstance(target, Declared | Explicit)
        doing = self.on(replica).reset_session(TENANT, target, reason=reason, expected=expected)
        if not model.generation:
            with pytest.raises(SessionNotFound):
                self.replicas.run(doing)
            return
        done = self.replicas.run(doing)
        assert (done.generation, done.ended_session_id) == (model.generation + 1, model.session_id)
        assert len(done.stopped) == len(model.turns)
        model.move(done.session_id)
        self.tell(model.place, "id", done.session_id)

    @rule(address=declared, replica=replicas, wrong=st.sampled_from([-1, 1]))
    def reset_in_vain(self, address: Declared, replica: int, wrong: int) -> None:
        """What expects another generation moves nothing."""
        expected = self.model[address].generation + wrong
        with pytest.raises((StaleGeneration, SessionNotFound)):
            self.replicas.run(self.on(replica).reset_session(TENANT, address, expected=expected))

    @rule(address=declared, replica=replicas, key=st.sampled_from(["k1", "k2", "k3"]))
    def reset_with_key(self, address: Declared, replica: int, key: str) -> None:
        """Under one key the same answer, however much later: one bump."""
        model, name = self.model[address], f"{address}:{key}"
        doing = self.on(replica).reset_session(TENANT, address, idempotency_key=name)
        if not model.generation and name not in self.resets:
            with pytest.raises(SessionNotFound):
                self.replicas.run(doing)
            return
        done = self.replicas.run(doing)
        if name not in self.resets:
            model.move(done.session_id)
            self.tell(model.place, "id", done.session_id)
        assert self.resets.setdefault(name, (done.generation, done.session_id)) == (done.generation, done.session_id)

    @rule(address=declared, hours=st.sampled_from([2, 13, 50, -1]))
    def rest(self, address: Declared, hours: int) -> None:
        """Time passes in one conversation, or its clock steps back; whatever runs there is not disturbed by that."""
        if self.model[address].session_id:
            self.model[address].rested_h = hours
            self.replicas.run(self.replicas.hosts[0].rest(hours * HOUR_MS, address))

    @rule(address=addresses, replica=replicas, force=st.booleans())
    def delete(self, address: Address, replica: int, force: bool) -> None:
        """The id is gone for good, and the generation moves on; a busy one is refused unless forced."""
        model = self.model[address]
        if model.session_id is None:
            return
        doing = self.on(replica).delete_session(TENANT, model.session_id, force=force)
        if model.turns and not force:
            with pytest.raises(SessionBusy):
                self.replicas.run(doing)
            return
        assert len(self.replicas.run(doing)) == len(model.turns)
        model.move()

    @rule(address=declared, replica=replicas, host_id=host_ids)
    def record(self, address: Declared, replica: int, host_id: str) -> None:
        """A host's id is bound to the current generation, for good, and has its scope."""
        model, on = self.model[address], self.on(replica)
        record = self.replicas.run(on.session_record(TENANT, host_id, source=address.source, key=address.key))
        if host_id not in self.bound:
            assert record.generation == max(model.generation, 1)
            model.generation = record.generation
            scope = self.replicas.run(on.scope(TENANT, host_id))
            self.bound[host_id] = Bound(model.place, record, scope)
            self.tell(model.place, "scope", scope)
        assert record == self.bound[host_id].record
        assert self.replicas.run(on.scope(TENANT, host_id)) == self.bound[host_id].scope

    @rule(replica=replicas, host_id=host_ids, reason=st.sampled_from((*REASONS, *HARMLESS)))
    def end(self, replica: int, host_id: str, reason: str) -> None:
        """The first end of a host's id moves its conversation on, if it is a boundary and the generation is current."""
        moved = self.replicas.run(self.on(replica).session_end(TENANT, host_id, reason))
        bound = self.bound.get(host_id)
        model = self.model[bound.place[0]] if bound else None
        if bound is None or model is None or bound.record.ended or bound.place != model.place or reason in HARMLESS:
            assert not moved
        else:
            assert moved
            model.move()
        if bound and not bound.record.ended:
            bound.record = self.replicas.run(self.on(replica).host_session(TENANT, host_id)) or bound.record
            assert bound.record.ended == reason

    @rule(replica=replicas)
    def prune(self, replica: int) -> None:
        """Only what is in use stays: declared ones move on and count on, others are dropped."""
        self.replicas.run(self.on(replica).prune(TENANT, 0))
        for model in self.model.values():
            model.pruned()

    @rule(replica=replicas)
    def restart(self, replica: int) -> None:
        """A replica ends, its turns with it, and another one takes its place."""
        for turn in self.replicas.restart(replica):
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
        self.bound.clear()
        for model in self.model.values():
            model.forget()

    @rule(replica=replicas)
    def ask_for_the_past(self, replica: int) -> None:
        """No id of an earlier generation leads anywhere; to ask for one is to ask: a boundary that is due passes."""
        current = {name for model in self.model.values() for name in (model.session_id, model.announced)}
        past = [name for name in self.told if name.startswith("ses_") and name not in current]
        for session_id in past[-3:]:
            model = self.model[self.told[session_id][0]]
            if model.due(replica) and not model.turns:
                model.move()
            with pytest.raises(SessionNotFound):
                self.replicas.run(self.replicas.hosts[replica].say(Explicit(session_id)))

    @invariant()
    def what_is_listed_is_what_is_current(self) -> None:
        """No session is listed but those that the model knows, and each in its generation."""
        views = self.replicas.run(self.on(0).sessions(TENANT))
        current = {(model.session_id, model.generation) for model in self.model.values() if model.session_id}
        assert {(view.id, view.generation) for view in views} == current


@pytest.mark.timeout(60)
def test_generations_against_a_model(server: StoreServer) -> None:
    """C5, C6, E2, J12: session ids and scopes never repeat, generations only grow between losses, and an in-flight turn
    of an earlier generation never commits."""
    machine: Any = type("Machine", (Generations,), {"server": server})
    checks = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        # Fifty steps can be read as they are; looking for fewer takes minutes.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=checks)
