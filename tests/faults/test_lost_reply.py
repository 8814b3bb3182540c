"""For each script: its reply is lost after the store has acted, and everything is as it would have been."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator import Coordinator, Declared, Result, Settings, TurnRequest, TurnView
from coordinator.scripts import load, names
from tests.faults.scenario import Story, calls_with, outcome, rounds, texts
from tests.processes.fleet import Fleet
from tests.support.proxy import DropReplyProxy
from tests.support.servers import StoreServer
from tests.support.waiting import until

TENANT = "default"
BEHIND, BESIDE = 0, 1
"""The replica whose replies get lost, and one that sees the store as it is."""


async def begun(fleet: Fleet, name: str) -> Any:
    """A keyed turn."""
    first = await fleet.chat(f"{name} hello", at=BEHIND, session_id=name, key=name)
    again = await fleet.chat(f"{name} hello", at=BESIDE, session_id=name, key=name)
    return first.status, again.body == first.body, again.replayed, len(await texts(fleet, name))


async def streamed(fleet: Fleet, name: str) -> Any:
    """A keyed turn that is streamed in several parts."""
    options: dict[str, Any] = {"session_id": name, "key": name, "stream": True, "model": "slow:0.03"}
    first = await fleet.chat(f"{name} b c d", at=BEHIND, **options)
    again = await fleet.chat(f"{name} b c d", at=BESIDE, **options)
    return first.status, len(first.events()), again.body == first.body, len(await texts(fleet, name))


async def refused(fleet: Fleet, name: str) -> Any:
    """A turn that the upstream refuses, twice under one key."""
    options: dict[str, Any] = {"session_id": name, "key": name, "model": "status:404"}
    replies = [await fleet.chat(f"{name} hello", at=at, **options) for at in (BEHIND, BESIDE)]
    return [(reply.status, reply.replayed) for reply in replies], calls_with(fleet, f"{name} hello")


async def renewed(fleet: Fleet, name: str) -> Any:
    """A turn that lasts longer than its lease."""
    running = await fleet.hold(f"{name} hello", at=BEHIND, session_id=name)
    await asyncio.sleep(1.2)
    fleet.upstream.release()
    return (await running).status, len(await texts(fleet, name))


async def looked_at(fleet: Fleet, name: str) -> Any:
    """A retry of a turn that ran elsewhere."""
    first = await fleet.chat(f"{name} hello", at=BESIDE, session_id=name, key=name)
    again = await fleet.chat(f"{name} hello", at=BEHIND, session_id=name, key=name)
    return again.status, again.body == first.body, calls_with(fleet, f"{name} hello")


async def stopped(fleet: Fleet, name: str) -> Any:
    """A turn that is stopped through another replica."""
    running = await fleet.hold(f"{name} hello", at=BESIDE, session_id=name)
    asked = await fleet.request("POST", f"/api/sessions/{name}/cancel", at=BEHIND)
    return asked.status, len(asked.json()["turns"]), await outcome(running)


async def deleted(fleet: Fleet, name: str) -> Any:
    """A session that is deleted."""
    await fleet.chat(f"{name} hello", at=BESIDE, session_id=name)
    statuses = [(await fleet.delete(name, at=at)).status for at in (BEHIND, BESIDE)]
    left = fleet.server.cli("KEYS", "coord1:{*:leftovers:*")
    return statuses, left, (await fleet.chat("again", session_id=name)).status


async def reset(fleet: Fleet, name: str) -> Any:
    """A conversation whose next generation is opened."""
    first = await fleet.chat(f"{name} hello", at=BESIDE, session_key=name)
    done = await fleet.request("POST", f"/api/sessions/{first.session_id}/reset", at=BEHIND)
    following = await fleet.chat(f"{name} hello", at=BESIDE, session_key=name)
    shown = (await fleet.session(following.session_id or "")).json()
    return (
        done.status,
        done.json()["generation"],
        shown["generation"],
        done.json()["session_id"] == following.session_id,
    )


async def opened(fleet: Fleet, name: str) -> Any:
    """A session without a turn."""
    made = [await fleet.request("POST", "/api/sessions", json={"id": name}, at=at) for at in (BEHIND, BESIDE)]
    return [reply.status for reply in made]


async def forked(fleet: Fleet, name: str) -> Any:
    """A copy of a session."""
    await fleet.chat(f"{name} hello", at=BESIDE, session_id=name)
    before = fleet.server.cli("ZCARD", f"coord1:{{{TENANT}}}:sessions")
    made = await fleet.request("POST", f"/api/sessions/{name}/fork", at=BEHIND)
    after = fleet.server.cli("ZCARD", f"coord1:{{{TENANT}}}:sessions")
    return made.status, after - before, len(await texts(fleet, made.json()["id"]))


async def edited(fleet: Fleet, name: str) -> Any:
    """Items that are added to a conversation."""
    await fleet.chat(f"{name} hello", at=BESIDE, session_id=name)
    item = {"type": "message", "role": "user", "content": "more"}
    done = await fleet.request("POST", f"/v1/conversations/{name}/items", json={"items": [item]}, at=BEHIND)
    return done.status, len(done.json()["data"]), len(await texts(fleet, name))


async def hidden(fleet: Fleet, name: str) -> Any:
    """A response that is deleted."""
    body = {"model": "ok", "input": "hello"}
    made = await fleet.request("POST", "/v1/responses", json=body, session_id=name, at=BESIDE)
    path = f"/v1/responses/{made.json()['id']}"
    done = await fleet.request("DELETE", path, at=BEHIND)
    return made.status, done.status, (await fleet.request("GET", path, at=BESIDE)).status


OVER_HTTP: dict[str, Callable[[Fleet, str], Awaitable[Any]]] = {
    "turn_begin": begun,
    "turn_append": streamed,
    "turn_finish": begun,
    "turn_abandon": refused,
    "turn_renew": renewed,
    "turn_status": looked_at,
    "turn_cancel": stopped,
    "turn_hide": hidden,
    "session_delete": deleted,
    "session_erase": deleted,
    "session_reset": reset,
    "session_open": opened,
    "session_fork": forked,
    "session_edit": edited,
}
"""What a request does that needs the script."""


@rounds(short=1, long=10)
async def test_over_http(start, story, store, rounds):
    """J2, B06: the client gets the same answer, and the store holds the same, as without the loss."""
    async with DropReplyProxy(store.port) as proxy:
        fleet = await start(1, "--lease-ttl", "1s", url=proxy.url)
        beside = await start(1, "--lease-ttl", "1s")
        fleet = Fleet(fleet.http, [*fleet.replicas, *beside.replicas], store, fleet.upstream)
        for number in range(rounds):
            for script, act in OVER_HTTP.items():
                expected = await act(fleet, f"{script}-plain-{number}")
                lost = proxy.dropped
                proxy.drop_next_reply(load(script).sha.encode())
                found = await act(fleet, f"{script}-lost-{number}")
                assert (script, found) == (script, expected)
                assert proxy.dropped == lost + 1, f"no reply of {script} was lost"
        story.tell(f"a reply of each of {len(OVER_HTTP)} scripts was lost {rounds} times")
        assert store.cli("EXISTS", f"coord1:{{{TENANT}}}:running", f"coord1:{{{TENANT}}}:waiting") == 0


async def recorded(host: Coordinator, other: Coordinator, name: str) -> Any:
    """A host's session id that is bound to a conversation."""
    await host.session_record(TENANT, f"host {name}", source="app", key=name)
    found = await other.host_session(TENANT, f"host {name}")
    assert found is not None
    return found.generation, found.key == name, found.ended


async def ended(host: Coordinator, other: Coordinator, name: str) -> Any:
    """One whose end is a boundary of its conversation."""
    await other.session_record(TENANT, f"host {name}", source="app", key=name)
    moved = await host.session_end(TENANT, f"host {name}", "session_reset")
    view, _ = await other.open_session(TENANT, Declared("app", name))
    return moved, view.generation, await other.session_end(TENANT, f"host {name}", "idle")


async def pruned(host: Coordinator, other: Coordinator, name: str) -> Any:
    """A conversation that nobody uses any more."""
    view, _ = await other.open_session(TENANT, Declared("app", name))
    dropped = await host.prune(TENANT, 0)
    following, _ = await other.open_session(TENANT, Declared("app", name))
    return dropped > 0, following.generation - view.generation


async def claimed(host: Coordinator, other: Coordinator, name: str) -> Any:
    """Accepted work whose replica died."""
    request = TurnRequest(tenant=TENANT, address=Declared("app", name), route="work", stored=True)
    accepted = await other.accept(request)
    assert isinstance(accepted, TurnView)
    store = other._store
    await store.execute("ZADD", f"coord1:{{{TENANT}}}:accepted", "XX", 1, accepted.turn)
    views = await host.claim(TENANT)
    async with host.resume(TENANT, views[0]) as turn:
        await turn.finish(Result(status=200, body=b"done"))
    view = await other.turn_view(TENANT, turn.id)
    assert view is not None
    return len(views), turn.id == accepted.turn, view.state, await other.claim(TENANT)


BY_A_HOST: dict[str, Callable[[Coordinator, Coordinator, str], Awaitable[Any]]] = {
    "session_record": recorded,
    "session_end": ended,
    "prune": pruned,
    "run_claim": claimed,
}
"""What a host does that needs the script, for scripts that no request needs."""


@rounds(short=1, long=20)
async def test_by_a_host(story: Story, store: StoreServer, rounds: int) -> None:
    """J2, C5: the same for what only the library does."""
    async with (
        DropReplyProxy(store.port) as proxy,
        Coordinator.open(proxy.url, Settings(replica="host"), serving=False) as host,
        Coordinator.open(store.url, Settings(replica="other"), serving=False) as other,
    ):
        for number in range(rounds):
            for script, act in BY_A_HOST.items():
                expected = await act(host, other, f"{script} plain {number}")
                lost = proxy.dropped
                proxy.drop_next_reply(load(script).sha.encode())
                assert (script, await act(host, other, f"{script} lost {number}")) == (script, expected)
                await until(lambda lost=lost: proxy.dropped == lost + 1)  # type: ignore[misc]
        story.tell(f"a reply of each of {len(BY_A_HOST)} scripts was lost {rounds} times")


def test_every_script_loses_a_reply() -> None:
    """House rule 1: a new script has a row here, or this fails."""
    assert sorted([*OVER_HTTP, *BY_A_HOST]) == names()


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_an_admission_that_stays_unanswered_is_taken_back(start, story, store, times):
    """G13, F6: its client is told 503 at worst, its retry runs once, and nobody holds what nobody was told of."""
    async with DropReplyProxy(store.port) as proxy:
        fleet = await start(1, "--lease-ttl", "1s", url=proxy.url)
        await fleet.chat("warm", session_id="warm", key="warm")
        proxy.drop_next_reply(load("turn_begin").sha.encode(), times=times)
        replies = [await fleet.chat("hello", session_id="s", key="k")]
        lost, proxy._armed[:] = proxy.dropped, []  # from here on none is lost any more
        replies.append(await fleet.chat("hello", session_id="s", key="k"))
        story.tell(f"{lost} replies lost: {[(reply.status, reply.replayed) for reply in replies]}")
        assert (replies[0].status, replies[0].code) in ((200, None), (503, "storage_unavailable"))
        assert (replies[1].status, replies[1].replayed) == (200, replies[0].status == 200)
        assert calls_with(fleet, "hello") == 1
        await until(lambda: store.cli("EXISTS", f"coord1:{{{TENANT}}}:running") == 0, timeout_s=1)
