"""A store that is away, frozen, locked, loading, forgetful, or loses its replies."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from coordinator.scripts import load
from tests.adapter.gateway import hold, queued, session_path
from tests.support.loading import LoadingServer
from tests.support.servers import StoreServer
from tests.support.waiting import until

WITHIN_S = 3.0  # two seconds are promised, the third is for a machine that is busy with other things
SHORT_MS = 600  # a patience after which a test need not wait long for what is being taken back
FAULTS = ("stopped", "frozen", "locked", "loading")


@contextlib.asynccontextmanager
async def fault(kind: str, server: StoreServer) -> AsyncIterator[None]:
    """The store cannot serve while the block runs, and can again afterwards."""
    if kind == "frozen":
        server.freeze()
        yield
        server.thaw()
    elif kind == "locked":
        server.cli("CONFIG", "SET", "requirepass", "secret-password")
        server.password = "secret-password"
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield
        server.cli("CONFIG", "SET", "requirepass", "")
        server.password = None
    else:
        server.kill()
        async with LoadingServer(port=server.port) if kind == "loading" else contextlib.nullcontext():
            yield
        server.start()


def turns():
    """Requests for turns: with and without a key, as JSON and as a stream, header-less and named."""
    return [
        {"session_id": f"s{n}" if n & 1 else None, "key": f"k{n}" if n & 2 else None, "stream": n >= 4}
        for n in range(8)
    ]


async def ask_all(gateway):
    """All those turns at once."""
    return await asyncio.gather(*(gateway.chat(f"hello {n}", **options) for n, options in enumerate(turns())))


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_store_that_cannot_serve(start_own, own_server, upstream, kind):
    """J1, G13: 503 `storage_unavailable` as JSON within two seconds on every route, and nothing of it runs later; once
    the store is back the same requests run at once, without a restart."""
    gateway = await (start_own() if kind == "frozen" else start_own(patience_ms=SHORT_MS))
    assert (await gateway.chat("warm", session_id="warm")).status == 200
    async with fault(kind, own_server):
        began = time.monotonic()
        refused, ready, *others = await asyncio.gather(
            ask_all(gateway),
            gateway.request("GET", "/readyz"),
            gateway.session("warm"),
            gateway.delete("warm"),
            gateway.delete("warm", "?force=true"),
            gateway.request("GET", session_path("warm") + "/messages"),
            gateway.request("GET", "/api/sessions"),
        )
        assert time.monotonic() - began < WITHIN_S
        refused += others
        assert [(reply.status, reply.code) for reply in refused] == [(503, "storage_unavailable")] * 13
        for reply in refused:
            assert (reply.headers["Content-Type"], reply.headers["Retry-After"]) == ("application/json", "1")
            assert "x-should-retry" not in reply.headers
            for word in (b"redis", b"auth", b"127.0.0.1", b"%d" % own_server.port, b"loading", b"secret-password"):
                assert word not in reply.body.lower()
        assert upstream.count == 1
        assert (ready.status, ready.json()["store"]) == (200, "unavailable")
        assert (await gateway.request("GET", "/healthz")).status == 200
    began = time.monotonic()
    again = await ask_all(gateway)
    assert time.monotonic() - began < WITHIN_S  # a lease that nobody holds would take 30
    assert [(reply.status, reply.replayed) for reply in again] == [(200, False)] * 8
    await until(lambda: own_server.cli("ZCARD", "coord1:{default}:running") == 0)
    assert own_server.cli("KEYS", "*:queue:*") == []
    assert (await gateway.request("GET", "/api/sessions")).status == 200
    assert (await gateway.request("GET", "/readyz")).json()["store"] == "ok"
    assert upstream.count == 9


@pytest.mark.parametrize("kind", ["stopped", "locked", "loading"])
async def test_a_gateway_starts_before_its_store(start_own, own_server, kind):
    """J1: a replica that starts while the store is away answers 503 until it is there, and needs no restart."""
    async with fault(kind, own_server):
        gateway = await start_own(patience_ms=SHORT_MS)
        assert (await gateway.chat("hello", key="k")).code == "storage_unavailable"
    assert (await gateway.chat("hello", key="k")).status == 200


@pytest.mark.parametrize(("stream", "key"), [(False, None), (False, "k"), (True, None)])
async def test_a_commit_that_is_not_confirmed(start_own, own_server, upstream, key, stream):
    """J1, J10: after dispatch it is `commit_unconfirmed`: a keyed client may retry and gets its answer."""
    gateway = await start_own(commit_patience_ms=300)
    model = "gate_mid" if stream else "gate"
    asking = await hold(gateway, upstream, "one two", model=model, session_id="s", key=key, stream=stream)
    await upstream.until(lambda up: bool(up.calls[0].sent) == stream)
    own_server.freeze()
    upstream.release()
    told = await asking
    own_server.thaw()
    if stream:
        assert told.status == 200
        assert '"commit_unconfirmed"' in told.events()[-1]
        assert "[DONE]" not in told.events()
    else:
        assert (told.status, told.code) == (503, "commit_unconfirmed")
        assert told.headers.get("Retry-After") == ("1" if key else None)
        assert told.headers.get("x-should-retry") == (None if key else "false")
    if key:
        again = await gateway.chat("one two", model=model, session_id="s", key=key, stream=stream)
        assert (again.status, again.text(), again.replayed) == (200, "one two", True)
    assert (await gateway.chat("next", session_id="s")).status == 200
    kept = (await gateway.request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["one two", "one two", "next", "next"]
    assert upstream.count == 2


async def test_a_keyed_stream_goes_on_over_a_short_absence(start_own, own_server, upstream):
    """J1, H2: while the store is away a keyed stream pauses, since its events go there first; then it goes on whole."""
    gateway = await start_own()
    asking = await hold(gateway, upstream, "one two", model="gate_mid", session_id="s", key="k", stream=True)
    await upstream.until(lambda up: bool(up.calls[0].sent))
    own_server.freeze()
    upstream.release()
    await asyncio.wait([asking], timeout=0.5)
    own_server.thaw()
    reply = await asking
    assert (reply.text(), reply.events()[-1]) == ("one two", "[DONE]")
    assert (await gateway.chat("one two", model="gate_mid", session_id="s", key="k", stream=True)).body == reply.body
    assert upstream.count == 1


STEPS: dict[str, dict] = {  # the script whose reply is lost, and options of a request that runs it
    "turn_begin": {},
    "turn_finish": {},
    "turn_append": {"model": "slow:0.05", "stream": True},
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("session_id", [None, "s"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_lost_reply_changes_nothing(start_behind, proxy, upstream, store_server, step, session_id, times):
    """J2: a script whose reply is lost, once or twice, is sent again: one upstream call, one turn, 200."""
    gateway = await start_behind()

    async def ask():
        return await gateway.chat("one two", key="k", session_id=session_id, **STEPS[step])

    await gateway.chat("warm", key="warm", stream=True, session_id="warm", model="slow:0.03")
    proxy.drop_next_reply(load(step).sha.encode(), times=times)
    reply = await ask()
    assert proxy.dropped == times
    assert (reply.status, reply.text(), reply.replayed) == (200, "one two", False)
    again = await ask()
    assert (again.body, again.replayed) == (reply.body, True)
    assert upstream.count == 2
    assert (await gateway.session(reply.session_id)).json()["turns"] == 1
    assert store_server.cli("ZCARD", "coord1:{default}:running") == 0


async def test_a_lost_reply_to_a_refusal_frees_the_key_all_the_same(start_behind, proxy, upstream):
    """J2, F6: the step that frees a key after a refusal may lose its reply too."""
    gateway = await start_behind()
    await gateway.chat("hello", model="status:400", key="warm")
    proxy.drop_next_reply(load("turn_abandon").sha.encode())
    assert (await gateway.chat("hello", model="status:400", key="k")).status == 400
    assert proxy.dropped == 1
    upstream.mode = "ok"
    again = await gateway.chat("hello", model="status:400", key="k")
    assert (again.status, again.replayed) == (200, False)


async def test_a_lost_reply_to_a_joiner_and_to_a_reader(start_behind, proxy, upstream):
    """J2: looking at a running turn, and reading its log, survive a lost reply."""
    gateway = await start_behind()
    running = await hold(gateway, upstream, "one two", key="k", stream=True)
    proxy.drop_next_reply(load("turn_status").sha.encode())
    joining = asyncio.create_task(gateway.chat("one two", model="gate", key="k", stream=True))
    await until(lambda: proxy.dropped == 1)
    proxy.drop_next_reply(b"XRANGE")
    upstream.release()
    first, joined = await running, await joining
    assert (joined.status, joined.body, proxy.dropped) == (200, first.body, 2)
    assert upstream.count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_forgotten_scripts_are_not_noticed(start, upstream, store_server, stream):
    """J5: `SCRIPT FLUSH` before and within requests, waiting ones included, changes no answer."""
    gateway = await start(lease_ms=600)
    for turn in range(3):
        store_server.cli("SCRIPT", "FLUSH")
        running = await hold(gateway, upstream, f"one {turn}", session_id="s", key=f"k{turn}", stream=stream)
        waiting = asyncio.create_task(gateway.chat("two", session_id="s", stream=stream))
        await queued(gateway, "s")
        store_server.cli("SCRIPT", "FLUSH")
        upstream.release()
        assert [(await asked).status for asked in (running, waiting)] == [200, 200]
        store_server.cli("SCRIPT", "FLUSH")
        again = await gateway.chat(f"one {turn}", model="gate", session_id="s", key=f"k{turn}", stream=stream)
        assert again.replayed
    store_server.cli("SCRIPT", "FLUSH")
    assert (await gateway.delete("s")).status == 200
    assert upstream.count == 6


async def test_a_restart_of_a_store_that_keeps_its_data_is_not_noticed(start, upstream):
    """J5: running turns commit over a restart of the store, a waiter behind them runs, and the history is whole."""
    with StoreServer(aof=True) as own:
        gateway = await start(store=own.store_url)
        running = await hold(gateway, upstream, "one two", session_id="s", key="k")
        streaming = await hold(gateway, upstream, "a b", model="gate_mid", session_id="t", key="l", stream=True)
        waiting = asyncio.create_task(gateway.chat("three", session_id="s"))
        await queued(gateway, "s")
        await asyncio.to_thread(own.restart)
        upstream.release()
        replies = await asyncio.gather(running, streaming, waiting)
        assert [(reply.status, reply.text()) for reply in replies] == [(200, "one two"), (200, "a b"), (200, "three")]
        sent = [message["content"] for message in upstream.calls[2].json()["messages"]]
        assert sent == ["one two", "one two", "three"]


async def test_a_store_that_lost_everything(start, upstream, store_server):
    """J12: after FLUSHALL a running turn is fenced, old ids of ours stay retired, and what comes next has new ones."""
    gateway = await start()
    opened = await gateway.chat("hello")
    running = await hold(gateway, upstream, "hello", session_id="s", key="k")
    store_server.cli("FLUSHALL")
    upstream.release()
    lost = await running
    assert (lost.status, lost.code) == (409, "lease_lost")
    assert (await gateway.chat("hello", session_id=opened.session_id)).status == 404
    again = await gateway.chat("hello")
    assert again.status == 200
    assert again.session_id != opened.session_id
    assert (await gateway.chat("hello", session_id="s")).status == 200
