"""Turns of one conversation: one at a time, first come first served, and nobody runs whose caller has given up."""

import asyncio
import time

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, end_lease, hold, queued
from tests.support.waiting import until

REJECT = {"X-Hermes-Turn-Policy": "reject"}


async def test_a_session_has_one_turn_at_a_time(start, upstream):
    """G1: 40 requests for one session over two replicas never overlap upstream, and all are answered."""
    gateways = [await start(queue_limit=64), await start(queue_limit=64)]
    asked = (
        gateways[i % 2].chat("hello", session_id="s", stream=i % 3 == 0, key=f"k{i}" if i % 4 == 0 else None)
        for i in range(40)
    )
    replies = await asyncio.gather(*asked)
    assert [reply.status for reply in replies] == [200] * 40
    assert (upstream.count, upstream.max_overlap) == (40, 1)
    assert (await gateways[0].session("s")).json()["turns"] == 40


async def test_sessions_do_not_wait_for_each_other(gateway, upstream):
    """G1: other sessions run while one is busy."""
    first = await hold(gateway, upstream, "hello", session_id="s")
    assert (await gateway.chat("hello", session_id="t")).status == 200
    upstream.release()
    assert (await first).status == 200


async def test_first_come_first_served(start, upstream):
    """G3: waiters of two replicas are served in the order in which they came."""
    gateways = [await start(), await start()]
    asking = [await hold(gateways[0], upstream, "first", session_id="s")]
    for number in range(6):
        asking.append(asyncio.create_task(gateways[number % 2].chat(f"waiter {number}", session_id="s")))
        await queued(gateways[0], "s", number + 1)
    upstream.release()
    assert [(await asked).status for asked in asking] == [200] * 7
    answered = [call.json()["messages"][-1]["content"] for call in upstream.calls]
    assert answered == ["first", *(f"waiter {number}" for number in range(6))]


async def test_a_newcomer_does_not_overtake(start, start_behind, proxy, upstream):
    """G3: whoever waits goes first, also when the message that the session is free takes its time to get there."""
    near, far = await start(), await start_behind()
    asking = [await hold(near, upstream, "first", session_id="s")]
    asking.append(asyncio.create_task(far.chat("waiter", session_id="s")))
    await queued(near, "s")
    proxy.delay_ms = 200
    upstream.release()
    assert (await asking[0]).status == 200
    asking.append(asyncio.create_task(near.chat("newcomer", session_id="s")))
    assert [(await asked).status for asked in asking] == [200] * 3
    answered = [call.json()["messages"][-1]["content"] for call in upstream.calls]
    assert answered == ["first", "waiter", "newcomer"]


async def test_the_next_waiter_starts_at_once(start, upstream):
    """G11: the hand-off to a waiter of another replica takes milliseconds, not a poll."""
    gateways = [await start(poll_ms=10_000, vouch_ms=30_000), await start(poll_ms=10_000, vouch_ms=30_000)]
    first = await hold(gateways[0], upstream, "hello", session_id="s")
    second = asyncio.create_task(gateways[1].chat("next", session_id="s"))
    await queued(gateways[0], "s")
    upstream.release()
    assert [(await asked).status for asked in (first, second)] == [200, 200]
    began, ended = upstream.calls[1].started, upstream.calls[0].ended
    assert began - ended < 5


@pytest.mark.parametrize("stream", [False, True])
async def test_waiting_has_an_end(start, upstream, store_server, stream):
    """G3, H1: after `turn_wait` it is 409 `session_busy` with a time to wait, as plain JSON, and no trace stays."""
    gateway = await start(turn_wait_ms=300)
    first = await hold(gateway, upstream, "hello", session_id="s")
    before = dump(store_server)
    began = time.monotonic()
    refused = await gateway.chat("next", session_id="s", key="k", stream=stream)
    assert 0.3 <= time.monotonic() - began < 2
    assert (refused.status, refused.code) == (409, "session_busy")
    assert refused.headers["Content-Type"] == "application/json"
    assert 1 <= int(refused.headers["Retry-After"]) <= 5
    assert "x-should-retry" not in refused.headers
    await until(lambda: set(dump(store_server)) == set(before))
    upstream.release()
    assert (await first).status == 200
    assert upstream.count == 1


@pytest.mark.parametrize("by", ["header", "setting"])
async def test_reject_does_not_wait(start, upstream, by):
    """G3: `reject`, of the deployment or of the request, is 409 `session_busy` at once."""
    gateway = await start(turn_policy="reject" if by == "setting" else "wait")
    headers = REJECT if by == "header" else {}
    first = await hold(gateway, upstream, "hello", session_id="s")
    refused = await gateway.chat("next", session_id="s", headers=headers)
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["Retry-After"]) >= 1
    upstream.release()
    assert (await first).status == 200
    assert (await gateway.chat("next", session_id="s", headers=headers)).status == 200
    assert upstream.count == 2


async def test_a_request_may_wait_where_the_deployment_rejects(start, upstream):
    """G3: `X-Hermes-Turn-Policy: wait` overrides the deployment's `reject`."""
    gateway = await start(turn_policy="reject")
    first = await hold(gateway, upstream, "hello", session_id="s")
    second = asyncio.create_task(gateway.chat("next", session_id="s", headers={"X-Hermes-Turn-Policy": "wait"}))
    await queued(gateway, "s")
    upstream.release()
    assert [(await asked).status for asked in (first, second)] == [200, 200]


async def test_an_unknown_policy_is_refused(gateway, upstream, store_server):
    """G3: anything but the policies is 400 before any write."""
    refused = await gateway.chat("hello", session_id="s", headers={"X-Hermes-Turn-Policy": "queue"})
    assert (refused.status, refused.code) == (400, "invalid_turn_policy")
    assert (upstream.count, dump(store_server)) == (0, {})


async def test_a_full_queue_refuses(start, upstream):
    """G3: one waiter more than `queue_limit` is 429 `session_queue_full`, and those in line keep their place."""
    gateway = await start(queue_limit=2)
    asking = [await hold(gateway, upstream, "hello", session_id="s")]
    for number in (1, 2):
        asking.append(asyncio.create_task(gateway.chat("next", session_id="s")))
        await queued(gateway, "s", number)
    refused = await gateway.chat("one too many", session_id="s", stream=True)
    assert (refused.status, refused.code) == (429, "session_queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    upstream.release()
    assert [(await asked).status for asked in asking] == [200] * 3
    assert upstream.count == 3


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_waiter_leaves_with_its_client(gateway, upstream, store_server, key, stream):
    """G3: who hangs up while waiting loses the place within two seconds, keyed or not, and is never run."""
    first = await hold(gateway, upstream, "hello", session_id="s")
    leaving = asyncio.create_task(gateway.chat("gone", session_id="s", key=key, stream=stream))
    await queued(gateway, "s")
    staying = asyncio.create_task(gateway.chat("stays", session_id="s"))
    await queued(gateway, "s", 2)
    leaving.cancel()
    began = time.monotonic()
    await queued(gateway, "s", 1)
    assert time.monotonic() - began < 2
    assert store_server.cli("KEYS", "*:idempotency:*") == []
    upstream.release()
    assert [(await asked).status for asked in (first, staying)] == [200, 200]
    assert [call.json()["messages"][-1]["content"] for call in upstream.calls] == ["hello", "stays"]


async def test_a_cap_on_running_turns(start, upstream):
    """G10: over the tenant's cap it is 429 `rate_limit_exceeded`; other tenants go on, and a slot comes back."""
    gateway = await start(max_running=2, keys=ApiKeys.load(None, "acme:one,beta:two"))
    running = [await hold(gateway, upstream, f"hello {number}", api_key="one") for number in range(2)]
    for stream in (False, True):
        refused = await gateway.chat("more", api_key="one", stream=stream)
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
    assert (await gateway.chat("more", api_key="two")).status == 200
    upstream.release()
    assert [(await asked).status for asked in running] == [200, 200]
    assert (await gateway.chat("more", api_key="one")).status == 200


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
