"""What holds for every script, in every situation in which it does something, on every store."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import coordinator.scripts
from coordinator.errors import ScriptError, StoreUnavailable
from coordinator.scripts import Script, load, names
from coordinator.scripts.__main__ import problems
from coordinator.store import Store
from tests.lua.calls import NUMBERS, SITUATIONS, Call, call_of, crowded
from tests.lua.stage import CHOSEN, KEY, OPENING, SLACK_MS, T1, T2, T3, Stage, stage_settings
from tests.support.monitor import Monitor
from tests.support.servers import StoreServer
from tests.support.snapshot import differences

GARBAGE = ("", "abc")
_LEFT = {b"queued": 5, b"busy": 3, b"turn": 2}
"""Where in a reply the rest of a lease stands."""

in_every_situation = pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)


def test_every_script_is_in_some_situation() -> None:
    """House rule 1: a new script is tested here from its first day."""
    assert {name.partition("-")[0] for name in SITUATIONS} == set(names())


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
    assert differences(first, second, slack_ms=0) == []
    assert first == second


@in_every_situation
async def test_a_key_of_another_type_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3, B43: each key in turn holds what nobody wrote there: an error, and not one key differs."""
    call = await situation(stage)
    for key in call.all_keys:
        backup = await stage.client.dump(key) if await stage.client.exists(key) else None
        await stage.client.set(key, "x")
        async with stage.unchanged():
            with pytest.raises(ScriptError, match=re.escape(f"{key} holds a string")):
                await call.run(stage.store)
        await stage.client.unlink(key)
        if backup is not None:
            await stage.client.restore(key, 0, backup)


@in_every_situation
async def test_an_argument_that_is_no_number_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3, B43: each number in turn is empty or a word: an error, and not one key differs."""
    call = await situation(stage)
    numbers = [name for name in call.args if name.endswith(("_ms", "_limit", "_count", "_running"))]
    numbers += [name for name in ("generation", "first", "status") if name in call.args]
    async with stage.unchanged():
        for name in numbers:
            for garbage in GARBAGE:
                with pytest.raises(ScriptError, match=f"{name} is not a whole number"):
                    await call.run(stage.store, **{name: garbage})


@in_every_situation
async def test_a_field_that_is_no_number_changes_nothing(
    stage: Stage, situation: Callable[[Stage], Awaitable[Call]]
) -> None:
    """J3, B43: each field that is read as a number in turn is empty or a word: an error, and not one key differs."""
    call = await situation(stage)
    for key_name, field in NUMBERS.get(call.script.name, []):
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


async def test_a_count_of_events_that_is_wrong_changes_nothing(stage: Stage) -> None:
    """J3: more events than arguments, or fewer than none, is an error before the first write."""
    fence = await crowded(stage)
    call = await call_of(stage, lambda on: on.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"]))
    async with stage.unchanged():
        for wrong in (2, -1):
            with pytest.raises(ScriptError, match="event_count"):
                await call.run(stage.store, event_count=wrong)


@in_every_situation
async def test_only_admission_creates(stage: Stage, situation: Callable[[Stage], Awaitable[Call]]) -> None:
    """J3, E2: on a store that lost everything every other script leaves it empty."""
    call = await situation(stage)
    await stage.client.flushall()
    await call.run(stage.store)
    assert (await stage.client.dbsize() > 0) == (call.script.name == "turn_begin")


@pytest.mark.parametrize("loss", ["deleted", "deleted and erased", "tombstone lost", "pruned", "everything lost"])
async def test_a_late_writer_revives_nothing(stage: Stage, loss: str) -> None:
    """E2, B20, B27: a holder that was paused meanwhile finds nothing to write to: no key appears, none comes back."""
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
    """B17: what MONITOR sees a script touch is in its KEYS, all in one slot."""
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


@in_every_situation
async def test_the_call_and_the_header_agree(stage: Stage, situation: Callable[[Stage], Awaitable[Call]]) -> None:
    """House rule 1: the library passes exactly the names that the header lists, and the tails that it has."""
    call = await situation(stage)
    script = call.script
    assert (set(call.keys), set(call.args)) == (set(script.keys), set(script.args))
    assert (bool(call.tail_keys), bool(call.tail)) == (script.keys_tail is not None, script.args_tail is not None)
    assert [name for name, key in call.keys.items() if key is None and name != "idempotency"] == []


@pytest.mark.parametrize("name", names())
def test_the_body_and_the_header_agree(name: str) -> None:
    """House rule 1: the body reads every key and argument that the header lists, no other, and by the same name."""
    script = load(name)
    assert problems(script) == []
    body = script.text[script.text.index("\n\n") :]
    for table, listed, tail in (("KEYS", script.keys, script.keys_tail), ("ARGV", script.args, script.args_tail)):
        assert {int(number) for number in re.findall(rf"\b{table}\[(\d+)\]", body)} == set(range(1, len(listed) + 1))
        assert (f"{table}[i" in body or f"{table}[2 * i" in body or f"{table}[at" in body) == (tail is not None)
    for local, table, number in named_locals(body):
        assert local == getattr(script, {"KEYS": "keys", "ARGV": "args"}[table])[int(number) - 1]


def named_locals(body: str) -> Iterator[tuple[str, str, str]]:
    """The locals that take over one key or argument each: name, table, number."""
    for left, right in re.findall(r"^local ([\w, ]+) = (.+)$", body, re.MULTILINE):
        values = re.split(r",\s*(?![^()]*\))", right)
        for local, value in zip(left.split(", "), values, strict=False):
            found = re.findall(r"\b(KEYS|ARGV)\[(\d+)\]", value)
            if len(found) == 1:
                yield (local, *found[0])


def test_the_readme_knows_every_script_reply_and_key(stage: Stage) -> None:
    """K1: the key table and the reply words that people look up are complete."""
    readme = (Path(coordinator.scripts.__file__).parents[2] / "lua" / "README.md").read_text("utf-8")
    for script in map(load, names()):
        section = readme.partition(f"### `{script.name}`")[2].partition("\n### ")[0]
        for word in re.findall(r"^-- -> \{'(\w+)'", script.text, re.MULTILINE):
            assert f"| `{word}` |" in section, f"{script.name}: {word}"
    plain = {stage.keys.running, stage.keys.waiting, stage.keys.cancelling, stage.keys.sessions, stage.keys.tombstones}
    by_name = {
        stage.keys.erasing,
        stage.keys.conversation("<cid>"),
        stage.keys.live("<cid>"),
        stage.keys.turns("<cid>"),
    }
    by_name |= {stage.keys.messages("<cid>"), stage.keys.queue("<cid>"), stage.keys.turn("<turn>")}
    by_name |= {stage.keys.events("<turn>"), stage.keys.idempotency("<digest>"), stage.keys.retired("<3 hex>")}
    for key in plain | by_name:
        assert f"| `{key.replace('acme', 't')}` |" in readme


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
        with pytest.raises(StoreUnavailable):
            await stage.begin("9" * 32)
        with pytest.raises(StoreUnavailable):
            await stage.append(fence, [b"2"], first=2)
    assert (await stage.status(T1, digest=KEY)) is not None
    assert await stage.renew(T1, T3) == (set(), set())
    assert await stage.abandon(None, turn=T2, by="r2") == "abandoned"
    assert await stage.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"], messages=[b"m"]) == "finished"
    assert await stage.abandon(other.fence, "failed", turn=T3, target=OPENING) == "abandoned"
    assert await stage.delete() == []
    assert await stage.erase(CHOSEN, T1, T2) == 1
    assert await stage.prune(OPENING, CHOSEN) == 2


def test_a_script_that_answers_what_python_does_not_know_is_an_error(stage: Stage) -> None:
    """House rule 2: every word of a header is matched in the call of the same name."""
    source = Path(coordinator.scripts.__file__).parents[1].joinpath("steps.py").read_text("utf-8")
    for script in map(load, names()):
        for word in words(script):
            assert f'b"{word}"' in source


def words(script: Script) -> list[str]:
    """The reply words that a header lists."""
    return re.findall(r"^-- -> \{'(\w+)'", script.text, re.MULTILINE)
