"""What holds for every script, in every situation in which it does something, on every store."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from coordinator.errors import ScriptError, StoreFull
from coordinator.scripts import load, names
from coordinator.store import Store
from tests.lua.begin_situations import crowded
from tests.lua.calls import Call, call_of
from tests.lua.situations import NUMBERS, SITUATIONS
from tests.lua.stage import CHOSEN, KEY, OPENING, SLACK_MS, T1, T2, T3, Stage, stage_settings
from tests.support.monitor import Monitor
from tests.support.servers import StoreServer
from tests.support.snapshot import differences

GARBAGE = ("", "abc")
_LEFT = {b"queued": 5, b"busy": 3, b"turn": 2}
"""Where in a reply the rest of a lease stands."""


def in_situations(names: Iterable[str]) -> pytest.MarkDecorator:
    """Runs a test in these situations."""
    found = sorted(names)
    return pytest.mark.parametrize("situation", [SITUATIONS[name] for name in found], ids=found)


in_every_situation = in_situations(SITUATIONS)


def script_of(situation: str) -> str:
    """The script that a situation is about."""
    return situation.partition("-")[0]


def numbers_of(script: str) -> list[str]:
    """Names of a script's arguments that are numbers."""
    words = ("generation", "first", "status", "length")
    endings = ("_ms", "_limit", "_count", "_running")
    return [name for name in load(script).args if name in words or name.endswith(endings)]


def fields_of(situation: str) -> set[tuple[str, str]]:
    """The fields that are read as numbers in a situation, with the names of their keys."""
    return {*NUMBERS.get(script_of(situation), []), *NUMBERS.get(situation, [])}


def test_every_script_is_in_some_situation() -> None:
    """House rule 1: a new script is tested here from its first day."""
    assert {script_of(name) for name in SITUATIONS} == set(names())


@in_every_situation
async def test_sent_twice_is_sent_once(stage: Stage, situation: Callable[[Stage], Awaitable[Call]]) -> None:
    """J2: the same reply and the same state, whichever reply was lost."""
    call = await situation(stage)
    first = await call.run(stage.store)
    async with stage.unchanged(slack_ms=SLACK_MS):
        second = await call.run(stage.store)
    for reply in (first, second):
        reply[1] = 0  # the store's time
        if left := _LEFT.get(reply[0]):
            reply[left] = round(reply[left] / stage.settings.lease_ms)
    assert differences(first, second, slack_ms=SLACK_MS) == []
    assert fences(first) == fences(second)


def fences(reply: list[Any]) -> set[bytes]:
    """The fence in a grant or in a record, which is as long as a time and exact nevertheless."""
    if reply[0] == b"granted":
        return {reply[5]}
    return {reply[3][reply[3].index(b"fence") + 1]} if reply[0] == b"turn" else set()


@in_every_situation
async def test_a_key_of_another_type_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3: each key in turn holds what nobody wrote there: an error, and not one key differs."""
    call = await situation(stage)
    # A turn that is told its grant again is told so whatever its key names.
    unread = {call.keys["idempotency"]} if situation is SITUATIONS["turn_begin-known"] else set()
    for key in set(call.all_keys) - unread:
        backup = await stage.client.dump(key) if await stage.client.exists(key) else None
        await stage.client.set(key, "x")
        async with stage.unchanged():
            with pytest.raises(ScriptError, match=f"{re.escape(key)} holds a string|^WRONGTYPE"):
                await call.run(stage.store)
        await stage.client.unlink(key)
        if backup is not None:
            await stage.client.restore(key, 0, backup)


@in_situations(name for name in SITUATIONS if numbers_of(script_of(name)))
async def test_an_argument_that_is_no_number_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3: each number in turn is empty or a word: an error, and not one key differs."""
    call = await situation(stage)
    async with stage.unchanged():
        for name in numbers_of(call.script.name):
            # Without either the turn is kept as long as any, and follows on whatever the transcript is.
            for garbage in GARBAGE[1:] if name in ("keep_ms", "length") else GARBAGE:
                with pytest.raises(ScriptError, match=f"{name} is not a whole number"):
                    await call.run(stage.store, **{name: garbage})


@in_situations(name for name in SITUATIONS if fields_of(name))
async def test_a_field_that_is_no_number_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3: each field that is read as a number in turn is empty or a word: an error, and not one key differs."""
    call = await situation(stage)
    name = next(name for name, named in SITUATIONS.items() if named is situation)
    for key_name, field in fields_of(name):
        key = call.keys[key_name] or ""
        before = await stage.client.hget(key, field)
        for garbage in GARBAGE:
            await stage.client.hset(key, field, garbage)
            async with stage.unchanged():
                with pytest.raises(ScriptError, match=f"{field} is not a whole number"):
                    await call.run(stage.store)
        await (stage.client.hdel(key, field) if before is None else stage.client.hset(key, field, before))


async def test_a_fence_that_is_no_number_changes_nothing(stage: Stage) -> None:
    """J3, G2: a grant that is told again needs its fence; whoever names one that is none is not the holder."""
    fence = await crowded(stage)
    calls = [
        await call_of(stage, lambda on: on.append(fence, [b"2"], first=2)),
        await call_of(stage, lambda on: on.finish(fence, digest=KEY)),
        await call_of(stage, lambda on: on.abandon(fence, "failed", digest=KEY)),
    ]
    async with stage.unchanged():
        for call in calls:
            assert (await call.run(stage.store, fence="abc"))[0] == b"lost"
        for call in calls[:2]:
            assert (await call.run(stage.store, fence=""))[0] == b"lost"
    await stage.client.hset(stage.keys.turn(T1), "fence", "abc")
    async with stage.unchanged():
        for call in calls:
            assert (await call.run(stage.store))[0] == b"lost"
        with pytest.raises(ScriptError, match="fence is not a whole number"):
            await stage.keyed(T1)


async def test_an_activity_that_is_no_number_stops_nothing_half_way(stage: Stage) -> None:
    """J3: a turn's end is written whole, and the time of it with it."""
    fence = await crowded(stage)
    key = stage.keys.conversation(CHOSEN.cid)
    await stage.client.hset(key, "active_ms", "abc")
    assert await stage.abandon(fence, "failed", digest=KEY) == "abandoned"
    assert await stage.now_ms() - int((await stage.hash(key))["active_ms"]) < SLACK_MS
    await stage.granted(T2, by="r2")
    await stage.client.hset(key, "active_ms", "abc")
    await stage.end_lease(T2)
    view = await stage.status(T2)
    assert view is not None
    assert view.state == "interrupted"
    assert await stage.now_ms() - int((await stage.hash(key))["active_ms"]) < SLACK_MS


async def test_a_count_of_events_that_is_wrong_changes_nothing(stage: Stage) -> None:
    """J3: more events than arguments, or fewer than none, is an error before the first write."""
    fence = await crowded(stage)
    call = await call_of(stage, lambda on: on.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"]))
    async with stage.unchanged():
        for wrong in (2, -1):
            with pytest.raises(ScriptError, match="event_count"):
                await call.run(stage.store, event_count=wrong)


@in_every_situation
async def test_only_what_opens_creates(stage: Stage, situation: Callable[[Stage], Awaitable[Call]]) -> None:
    """J3, E2: on a store that lost everything all but admitting, opening and recording leave it empty."""
    call = await situation(stage)
    await stage.client.flushall()
    await call.run(stage.store)
    assert call.script.name in ("turn_begin", "session_open", "session_record") or await stage.snapshot() == {}


@pytest.mark.parametrize("loss", ["deleted", "deleted and erased", "tombstone lost", "pruned", "everything lost"])
async def test_a_late_writer_revives_nothing(stage: Stage, loss: str) -> None:
    """E2: a holder that was paused meanwhile finds nothing to write to: no key appears, none comes back."""
    grant = await stage.keyed_grant(T1, OPENING)
    await stage.append(grant.fence, [b"e"], target=OPENING)
    if loss == "pruned":
        await stage.end_lease(T1)
        await stage.prune(OPENING)
    elif loss == "everything lost":
        await stage.client.flushall()
    else:
        await stage.delete(type(OPENING)(OPENING.cid, grant.session_id), force=True)
    if loss == "deleted and erased":
        await stage.erase(OPENING, T1)
    if loss == "tombstone lost":
        await stage.client.unlink(stage.keys.conversation(OPENING.cid), stage.keys.tombstones)
    before = await stage.snapshot()
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"], first=2, target=OPENING) != 2
        assert await stage.renew(T1) in (({T1}, set()), (set(), {T1}))
        assert await stage.finish(grant.fence, target=OPENING, digest=KEY, messages=[b"late"]) != "finished"
    await stage.abandon(grant.fence, "failed", target=OPENING, digest=KEY)
    assert set(await stage.snapshot()) <= set(before)
    assert await stage.transcript(OPENING) == []
    assert not await stage.client.exists(stage.keys.running, stage.keys.live(OPENING.cid))


async def test_every_key_is_declared(store_server: StoreServer, cluster_server: StoreServer) -> None:
    """House rule 6: what MONITOR sees a script touch is in its KEYS, all in one slot."""
    for server in (store_server, cluster_server):
        async with Store(server.url, stage_settings("r1")) as store:
            client = store.listener()
            stage = Stage(store, client)
            with Monitor(server) as monitor:
                for situation in SITUATIONS.values():
                    await client.flushall()
                    await (await situation(stage)).run(store)
                assert monitor.violations() == []
                seen = {call.script.decode() for call in monitor.calls}
            await client.aclose()
        assert {load(name).sha for name in names()} <= seen


@pytest.fixture
def full_server(store_server: StoreServer) -> Iterator[Callable[[], None]]:
    """Call it to fill the memory of the server up."""
    yield lambda: store_server.cli("CONFIG", "SET", "maxmemory", 1)
    store_server.cli("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.parametrize("store_url", ["real"], indirect=True)
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "not yet loaded"])
async def test_a_full_store_admits_nothing_and_lets_everybody_out(
    stage: Stage, full_server: Callable[[], None], loaded: bool
) -> None:
    """J1, J3, F10: no new turn and no half write; running turns end, states are told, space can be made."""
    fence = await crowded(stage)
    other = await stage.granted(T3, OPENING)
    if not loaded:
        await stage.client.script_flush()
    full_server()
    async with stage.unchanged():
        with pytest.raises(StoreFull):
            await stage.begin("9" * 32)
        with pytest.raises(StoreFull):
            await stage.append(fence, [b"2"], first=2)
    assert (await stage.status(T1, digest=KEY)) is not None
    assert await stage.renew(T1, T3) == (set(), set())
    assert await stage.abandon(None, turn=T2, by="r2") == "abandoned"
    assert await stage.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"], messages=[b"m"]) == "finished"
    assert await stage.abandon(other.fence, "failed", turn=T3, target=OPENING) == "abandoned"
    assert await stage.delete() == []
    assert await stage.erase(CHOSEN, T1, T2) == 1
    assert await stage.prune(OPENING, CHOSEN) == 2
