"""The table of refusals: each code with its status and what it tells clients about trying again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway_adapter import context
from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import end_lease, hold, queued, user
from tests.support.clients import Reply
from tests.support.process import LOCALHOST, free_port

NO_RETRY: dict[str, str | None] = {"x-should-retry": "false"}
LATER: dict[str, str | None] = {"Retry-After": "1"}

Scenario = Callable[..., Awaitable[Reply]]


async def invalid(test, stream):
    """A request that is wrong in itself."""
    return await (await test.start()).chat([user("")], stream=stream)


async def wrong_key(test, stream):
    """No bearer."""
    return await (await test.start(keys=ApiKeys.load(None, "acme:one"))).chat("hello", stream=stream)


async def too_large(test, stream):
    """A body over the limit."""
    return await (await test.start(max_body_bytes=100)).chat("hello" * 100, stream=stream)


async def not_found(test, stream):
    """A retired session."""
    gateway = await test.start()
    await gateway.chat("hello", session_id="s")
    await gateway.delete("s")
    return await gateway.chat("hello", session_id="s", stream=stream)


async def busy(test, stream):
    """A session that another turn holds."""
    gateway = await test.start(turn_policy="reject")
    test.held = await hold(gateway, test.upstream, "hello", session_id="s")
    return await gateway.chat("next", session_id="s", stream=stream)


async def queue_full(test, stream):
    """A session with as many waiters as may be."""
    gateway = await test.start(queue_limit=0)
    test.held = await hold(gateway, test.upstream, "hello", session_id="s")
    return await gateway.chat("next", session_id="s", stream=stream)


async def limited(test, stream):
    """A tenant with as many turns as may be."""
    gateway = await test.start(max_running=1)
    test.held = await hold(gateway, test.upstream, "hello")
    return await gateway.chat("next", stream=stream)


async def conflict(test, stream):
    """A key that names another request."""
    gateway = await test.start()
    await gateway.chat("hello", key="k")
    return await gateway.chat("other", key="k", stream=stream)


async def unknown_execution(test, stream):
    """A key whose turn was interrupted."""
    gateway = await test.start()
    test.held = await hold(gateway, test.upstream, "hello", key="k")
    end_lease(test.server)
    return await gateway.chat("hello", model="gate", key="k", stream=stream)


async def expired(test, stream):
    """A key whose answer is no longer kept."""
    gateway = await test.start(max_stored_bytes=10)
    await gateway.chat("hello", key="k")
    return await gateway.chat("hello", key="k", stream=stream)


async def stale(test, stream):
    """A conversation that moved on while one waited."""
    gateway = await test.start(implicit_turns="exclusive")
    opened = await gateway.chat("hello")
    test.held = await hold(gateway, test.upstream, "hello")
    waiting = asyncio.create_task(gateway.chat("hello", stream=stream))
    await queued(gateway, opened.session_id)
    await gateway.delete(opened.session_id, "?force=true")
    return await waiting


async def lease_lost(test, stream):
    """A turn whose conversation was taken over."""
    gateway = await test.start()
    asking = await hold(gateway, test.upstream, "hello", session_id="s")  # a stream would have begun by then
    end_lease(test.server)
    await gateway.chat("next", session_id="s", stream=stream)
    test.upstream.release()
    return await asking


async def cancelled(test, stream):
    """A turn that was stopped."""
    gateway = await test.start()
    asking = await hold(gateway, test.upstream, "hello", session_id="s", stream=stream)
    await gateway.delete("s", "?force=true")
    return await asking


async def store_away(test, stream):
    """A store that takes nothing."""
    gateway = await test.start(patience_ms=500)
    test.server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        return await gateway.chat("hello", stream=stream)
    finally:
        test.server.cli("CONFIG", "SET", "maxmemory", "0")


async def draining(test, stream):
    """A replica on its way out."""
    gateway = await test.start()
    gateway.coordinator.drain()
    return await gateway.chat("hello", stream=stream)


async def upstream_away(test, stream):
    """An upstream that is not there."""
    return await (await test.start(upstream=f"http://{LOCALHOST}:{free_port()}/v1")).chat("hello", stream=stream)


async def upstream_failed(test, stream):
    """An upstream that failed."""
    return await (await test.start()).chat("hello", model="status:500", stream=stream)


async def upstream_auth(test, stream):
    """An upstream that does not take the gateway's credentials."""
    return await (await test.start()).chat("hello", model="status:401", stream=stream)


TABLE: dict[
    Scenario, tuple[str, int, dict[str, str | None]]
] = {  # scenario: code, status, headers; a time to wait that is no fixed one is None
    invalid: ("invalid_messages", 400, NO_RETRY),
    wrong_key: ("invalid_api_key", 401, NO_RETRY),
    too_large: ("body_too_large", 413, NO_RETRY),
    not_found: ("not_found", 404, NO_RETRY),
    busy: ("session_busy", 409, {"Retry-After": None}),
    queue_full: ("session_queue_full", 429, {"Retry-After": None}),
    limited: ("rate_limit_exceeded", 429, {"Retry-After": None}),
    conflict: ("admission_conflict", 409, NO_RETRY),
    unknown_execution: ("unknown_execution", 409, NO_RETRY),
    expired: ("idempotency_expired", 409, NO_RETRY),
    stale: ("stale_generation", 409, NO_RETRY),
    lease_lost: ("lease_lost", 409, NO_RETRY),
    cancelled: ("turn_cancelled", 409, NO_RETRY),
    store_away: ("storage_unavailable", 503, LATER),
    draining: ("gateway_draining", 503, LATER),
    upstream_away: ("upstream_unavailable", 502, {"Retry-After": None}),
    upstream_failed: ("upstream_failed", 502, NO_RETRY),
    upstream_auth: ("upstream_auth_failed", 502, NO_RETRY),
}
KINDS = {429: "rate_limit_error", 502: "server_error", 503: "server_error"}


class Setting:
    """What a scenario works with; `held` is a request that waits for its upstream."""

    def __init__(self, start, server, upstream):
        self.start, self.server, self.upstream = start, server, upstream
        self.held = None


@pytest.mark.parametrize("scenario", TABLE)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_refusal_follows_the_table(start, store_server, upstream, scenario, stream):
    """J8, J10, H1: code, status and retry headers are the table's, as an OpenAI error in JSON, also for a stream."""
    code, status, headers = TABLE[scenario]
    setting = Setting(start, store_server, upstream)
    reply = await scenario(setting, stream)
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["Content-Type"].startswith("application/json")
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.json()["error"]["type"] == KINDS.get(status, "invalid_request_error")
    told = {name: reply.headers[name] for name in ("Retry-After", "x-should-retry") if name in reply.headers}
    assert set(told) == set(headers)
    assert all(told[name] == value if value else int(told[name]) >= 1 for name, value in headers.items())
    upstream.release()
    if setting.held:
        await setting.held


async def test_success_and_replays_are_not_to_be_sent_again(gateway):
    """J10: whatever is sent after the dispatch says so."""
    for stream in (False, True):
        for _ in range(2):
            assert (await gateway.chat("hello", key=f"{stream}", stream=stream)).headers["x-should-retry"] == "false"


async def test_a_failure_of_our_own_tells_nothing(gateway, upstream, monkeypatch):
    """J8, G5: an unforeseen failure is 500 without its text, and the session is free again."""

    def fail(*_, **__):
        raise RuntimeError("a-path-of-ours")

    with monkeypatch.context() as broken:
        broken.setattr(gateway.app[context.EXECUTOR], "chat", fail)
        reply = await gateway.chat("hello", session_id="s", key="k")
    assert (reply.status, reply.code) == (500, "internal_error")
    assert b"a-path-of-ours" not in reply.body
    assert b"RuntimeError" not in reply.body
    assert (await gateway.chat("next", session_id="s")).status == 200
