"""What a turn may rely on, and what becomes of one that lost its conversation."""

import asyncio

import pytest

from tests.adapter.gateway import end_lease, hold, queued


@pytest.mark.parametrize("stream", [False, True])
async def test_history_is_read_under_the_lease(gateway, upstream, stream):
    """G4: what was said while a request waited is part of what it sends upstream."""
    first = await hold(gateway, upstream, "one", session_id="s", stream=stream)
    second = asyncio.create_task(gateway.chat("two", session_id="s", stream=stream))
    await queued(gateway, "s")
    upstream.release()
    assert [(await asked).status for asked in (first, second)] == [200, 200]
    assert [message["content"] for message in upstream.calls[1].json()["messages"]] == ["one", "one", "two"]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_deleted_while_one_waited(start, upstream, explicit, stream):
    """G4: the waiter is refused without a call: 404 when it named the session, else 409 `stale_generation`."""
    gateway = await start(implicit_turns="exclusive", lease_ms=1_500)
    named = "s" if explicit else None
    opened = await gateway.chat("hello", session_id=named)
    running = await hold(gateway, upstream, "hello", session_id=named)
    waiting = asyncio.create_task(gateway.chat("hello", session_id=named, stream=stream, key="k"))
    await queued(gateway, opened.session_id)
    assert (await gateway.delete(opened.session_id, "?force=true")).status == 200
    refused = await waiting
    expected = (404, "not_found") if explicit else (409, "stale_generation")
    assert (refused.status, refused.code) == expected
    assert refused.headers["x-should-retry"] == "false"
    assert (await running).code == "turn_cancelled"
    assert upstream.count == 2
    if not explicit:  # the key was never taken, and the next conversation has a new id
        again = await gateway.chat("hello", stream=stream, key="k")
        assert again.status == 200
        assert again.session_id != opened.session_id


async def test_the_first_terminal_state_wins(gateway, upstream, store_server):
    """G8, F5: once anyone was told that a turn was interrupted its holder can no longer complete it."""
    running = await hold(gateway, upstream, "hello", session_id="s", key="k")
    end_lease(store_server)
    for _ in range(2):
        told = await gateway.chat("hello", model="gate", session_id="s", key="k")
        assert (told.status, told.code) == (409, "unknown_execution")
        assert told.headers["x-should-retry"] == "false"
    upstream.release()
    late = await running
    assert (late.status, late.code) == (409, "lease_lost")
    told = await gateway.chat("hello", model="gate", session_id="s", key="k")
    assert (told.status, told.code) == (409, "unknown_execution")
    assert (await gateway.chat("next", session_id="s")).status == 200
    assert [message["content"] for message in upstream.calls[1].json()["messages"]] == ["next"]


async def test_an_expired_lease_that_nobody_took_is_still_its_holders(gateway, upstream, store_server):
    """G2, G8: a turn whose lease ended commits when nobody acted on that, and everybody is told so."""
    running = await hold(gateway, upstream, "hello", session_id="s", key="k")
    end_lease(store_server)
    upstream.release()
    first = await running
    assert first.status == 200
    assert (await gateway.chat("hello", model="gate", session_id="s", key="k")).body == first.body
    assert upstream.count == 1


async def test_a_taken_lease_fences_its_holder(start, upstream, store_server):
    """G1, G2: a holder whose conversation was taken over commits nothing, and its client is told `lease_lost`."""
    gateways = [await start(), await start()]
    old = await hold(gateways[0], upstream, "old", session_id="s")
    end_lease(store_server)
    new = await hold(gateways[1], upstream, "new", session_id="s")
    upstream.release("old")
    late = await old
    assert (late.status, late.code) == (409, "lease_lost")
    upstream.release("new")
    assert (await new).status == 200
    kept = (await gateways[0].request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["new", "new"]


async def test_an_interrupted_turn_is_rerun_where_that_is_asked_for(start, upstream, store_server):
    """F5: `interrupted_turns=rerun` runs it once more, only while its session is still the current one."""
    gateway = await start(interrupted_turns="rerun")
    for name in ("s", "t"):
        running = await hold(gateway, upstream, "hello", session_id=name, key=name)
        end_lease(store_server)
        if name == "t":
            await gateway.delete("t")
            refused = await gateway.chat("hello", model="gate", session_id="t", key="t")
            assert refused.status in (404, 409)
            upstream.release()
            await running
            continue
        again = await hold(gateway, upstream, "hello", session_id="s", key="s")
        upstream.release()
        assert ((await running).code, (await again).status) == ("lease_lost", 200)
    assert upstream.count == 3
