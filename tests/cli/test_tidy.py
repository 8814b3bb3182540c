"""The verbs that keep a store in order, against a real server."""

from __future__ import annotations

import asyncio

import pytest

from coordinator import Coordinator, Declared, Implicit, SessionNotFound, TurnCancelled, TurnEnded, TurnRequest
from tests.cli.conftest import AskLater, answered, asking, held


async def test_deleting_retires(fleet: Coordinator, ask_beside: AskLater) -> None:
    """E1: once; the id is gone for everybody."""
    await answered(fleet, asking())
    ran = await ask_beside("delete", "chat", "--json")
    assert ran.json == {"id": "chat", "object": "session.deleted", "deleted": True, "ended_turns": []}
    with pytest.raises(SessionNotFound):
        await fleet.session("default", "chat")
    assert (await ask_beside("delete", "chat")).code == 1


async def test_a_busy_session_is_deleted_only_by_force(fleet: Coordinator, ask_beside: AskLater) -> None:
    """E3: refused with a hint; with --force its turn ends."""
    turn, holder = await held(fleet, asking())
    refused = await ask_beside("delete", "chat")
    assert refused.code == 1
    assert "replica-1" in refused.complaint
    assert "--force" in refused.complaint
    forced = await ask_beside("delete", "chat", "--force", "--json")
    assert forced.json["ended_turns"] == [turn.id]
    with pytest.raises(TurnEnded):
        await asyncio.wait_for(holder, 15)  # with its next renewal, should the message be lost


async def test_receipts_stay_unless_they_are_dropped(fleet: Coordinator, ask_beside: AskLater) -> None:
    """E4: an answer that a keyed client received can be fetched again after a deletion, but not after --receipts."""
    kept, dropped = await answered(fleet, asking("kept", key="k1")), await answered(fleet, asking("dropped", key="k2"))
    await ask_beside("delete", "kept")
    await ask_beside("delete", "dropped", "--receipts")
    left = [await fleet.turn_view("default", turn.id) for turn in (kept, dropped)]
    assert [view and view.result and view.result.body for view in left] == [b'{"answer": 1}', b""]


async def test_pruning_takes_all_tenants_or_one(fleet: Coordinator, ask_beside: AskLater) -> None:
    """E6: what is idle for the horizon goes; younger sessions, and those of others, stay."""
    for tenant in ("acme", "beta"):
        await answered(fleet, TurnRequest(tenant=tenant, address=Implicit((b"system", b"hello")), route="chat"))
    assert (await ask_beside("prune")).out == "0 conversations dropped, 2 tenants looked at\n"
    assert (await ask_beside("prune", "--horizon", "1h", "--json")).json["dropped"] == 0
    one = (await ask_beside("prune", "--horizon", "0s", "--tenant", "acme", "--json")).json
    assert one == {"object": "prune", "dropped": 1, "tenants": {"acme": 1}}
    assert len(await fleet.sessions("beta")) == 1
    assert (await ask_beside("prune", "--horizon", "0s")).out == "1 conversation dropped, 2 tenants looked at\n"
    assert not await fleet.sessions("beta")


async def test_the_horizon_is_the_session_ttl_by_default(fleet: Coordinator, ask_beside: AskLater) -> None:
    """E6: pruning by hand drops what the replicas would."""
    await answered(fleet, asking())
    await asyncio.sleep(0.002)  # older than the millisecond it may keep
    assert (await ask_beside("prune", "--session-ttl", "1ms", "--json")).json["dropped"] == 1


async def test_a_reset_opens_the_next_generation(fleet: Coordinator, ask_beside: AskLater) -> None:
    """C5, C6: by the id of the current one, for the reason given; the id is retired by it."""
    request = TurnRequest(tenant="default", address=Declared("telegram", "chat-42"), route="chat")
    first = await answered(fleet, request)
    told = (await ask_beside("reset", first.session_id, "--reason", "idle", "--json")).json
    assert (told["id"], told["object"], told["reason"]) == (first.session_id, "session.reset", "idle")
    assert (told["generation"], told["ended_turns"]) == (2, [])
    assert (await answered(fleet, request)).session_id == told["session_id"] != first.session_id
    assert (await ask_beside("reset", first.session_id)).complaint == "session-coordinator: no such session"


async def test_what_cannot_be_reset_is_told(fleet: Coordinator, ask_beside: AskLater) -> None:
    """C7: a client-chosen id has no next generation, and only the boundaries that there are end one."""
    await answered(fleet, asking())
    assert "no next generation" in (await ask_beside("reset", "chat")).complaint
    wrong = await ask_beside("reset", "chat", "--reason", "compression")
    assert wrong.code == 2
    assert "--reason" in wrong.complaint


@pytest.mark.parametrize("by_token", [True, False])
async def test_a_turn_is_cancelled_by_its_token_or_its_session(
    fleet: Coordinator, ask_beside: AskLater, by_token: bool
) -> None:
    """G7: from anywhere; the session stays."""

    turn, holder = await held(fleet, asking())
    told = (await ask_beside("cancel", turn.id if by_token else "chat", "--json")).json
    assert told["turns"] == [turn.id]
    with pytest.raises(TurnCancelled):
        await asyncio.wait_for(holder, 10)
    assert (await ask_beside("cancel", "chat")).out == "nothing was running\n"
    assert (await fleet.session("default", "chat")).live == []


async def test_what_the_replicas_agree_on_is_shown_and_changed(fleet: Coordinator, ask_beside: AskLater) -> None:
    """J13: it stands in the store, and changing it is a command."""
    assert (await ask_beside("settings", "--lease-ttl", "7s", "--implicit-turns", "exclusive")).code == 0
    told = (await ask_beside("settings", "--json")).json
    assert (told["object"], int(told["lease_ms"]), told["implicit_turns"]) == ("settings", 7_000, "exclusive")
    wrong = await ask_beside("settings", "--lease-ttl", "1ms")
    assert wrong.code == 2
    assert "lease" in wrong.complaint
    assert (await ask_beside("settings", "--json")).json == told


async def test_a_healthy_server_passes_its_examination(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: what was looked at is listed, and nothing that loses data is wrong with a server that keeps its keys."""
    told = (await ask_beside("doctor", "--json")).json
    assert told["object"] == "doctor"
    assert told["findings"]
    shown = await ask_beside("doctor")
    assert shown.code == (1 if told["status"] == "error" else 0)
    assert len(shown.out.splitlines()) == 1 + len(told["findings"])
