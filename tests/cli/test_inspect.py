"""The verbs that look into a store, and how all that ask one fail, against a real server."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from coordinator import Coordinator
from coordinator.identity import key_digest
from coordinator.keys import REPLICAS, TenantKeys
from gateway_adapter.representation import session_json, turn_json
from tests.cli.conftest import COMMAND, AskLater, Run, answered, asking, start
from tests.support.process import free_port
from tests.support.replicas import Replica
from tests.support.servers import StoreServer
from tests.support.waiting import until

ODD_IDS = ["-rf", "two words", "größe-λ", "[bold]x[/bold]", ":smile:", "*", "{}", "%s", "a" * 256]
UNKNOWN_TURN = "0" * 32


async def test_sessions_are_listed_the_latest_first(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: a tenant's sessions with what there is to know of them, and a remark when there are more."""
    for session_id in ("first", "second", "third"):
        await answered(fleet, asking(session_id))
        await asyncio.sleep(0.002)  # activity is told apart by the millisecond
    await answered(fleet, asking("theirs", tenant="acme"))
    ran = await ask_beside("sessions", "--json")
    assert [one["id"] for one in ran.json["data"]] == ["third", "second", "first"]
    assert ran.json == {
        "object": "list",
        "data": [session_json(view) for view in await fleet.sessions("default")],
        "has_more": False,
    }
    shown = await ask_beside("sessions", "--limit", "2")
    assert [line.split()[-1] for line in shown.out.splitlines()] == ["SESSION", "third", "second"]
    assert shown.err == "there are more: --limit 4\n"
    theirs = await ask_beside("sessions", "--tenant", "acme")
    assert [line.split()[-1] for line in theirs.out.splitlines()] == ["SESSION", "theirs"]


async def test_a_store_without_sessions_says_so(ask_beside: AskLater) -> None:
    """K2: nothing there is an answer, not a mistake."""
    assert (await ask_beside("sessions")).out == "no sessions\n"
    assert (await ask_beside("turns")).out == "no running turns\n"
    assert (await ask_beside("sessions", "--json")).json == {"object": "list", "data": [], "has_more": False}


async def test_a_session_is_shown_with_its_live_turn(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: the same JSON as over HTTP, with turn, replica, fence and what is left of the lease."""
    async with fleet.turn(asking()) as turn:
        told = (await ask_beside("session", "chat", "--json")).json
        shown = (await ask_beside("session", "chat")).out
    live = told["live"][0]
    assert 0 < live.pop("expires_in_ms") <= 30_000
    assert live == {"turn": turn.id, "replica": "replica-1", "fence": turn.fence}
    view = session_json(await fleet.session("default", "chat"))
    assert {**told, "live": [], "active_at": 0} == {**view, "active_at": 0}
    assert {"id", "object", "kind", "source", "history", "generation", "scope", "turns", "created_at", "queued"} <= set(
        told
    )
    facts = dict(line.split(maxsplit=1) for line in shown.replace("live 1", "live").splitlines())
    assert facts["session"] == "chat"
    assert facts["kind"] == "explicit"
    assert facts["scope"] == told["scope"]
    assert facts["created"].endswith("Z")
    assert facts["live"].startswith(f"{turn.id} on replica-1, fence {turn.fence}, ")


@pytest.mark.parametrize("session_id", ODD_IDS)
async def test_an_odd_id_is_shown_whole(fleet: Coordinator, ask_beside: AskLater, session_id: str) -> None:
    """B3: an id is reachable from the command line and printed as it is, however long, and whatever it looks like."""
    turn = await answered(fleet, asking(session_id))
    assert (await ask_beside("session", "--json", "--", session_id)).json["id"] == session_id
    for words in (["sessions"], ["session", "--", session_id], ["turns", "--", session_id], ["turn", turn.id]):
        shown = (await ask_beside(*words)).out
        assert any(line.endswith(f" {session_id}") for line in shown.splitlines()), shown
    assert (await ask_beside("delete", "--", session_id)).out == "deleted\n"
    assert (await ask_beside("session", "--", session_id)).code == 1


async def test_a_terminal_without_the_characters_gets_an_escape(fleet: Coordinator, store_server: StoreServer) -> None:
    """B3: an id that the terminal cannot show does not end the command."""
    await answered(fleet, asking("größe-λ"))
    variables = {"COORDINATOR_STORE": store_server.store_url, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ran = await asyncio.to_thread(start, "sessions", variables=variables)
    assert ran.code == 0
    assert r"gr\xf6\xdfe-\u03bb" in ran.out


async def test_what_is_not_there_is_told_alike(fleet: Coordinator, ask_beside: AskLater) -> None:
    """B4, K2: unknown, retired and another tenant's: exit code 1 and the same line."""
    await answered(fleet, asking("theirs", tenant="acme"))
    await answered(fleet, asking("gone"))
    await fleet.delete_session("default", "gone")
    for session_id in ("unknown", "theirs", "gone", ""):
        for verb in ("session", "turns", "delete"):
            ran = await ask_beside(verb, session_id)
            assert ran.code == 1
            assert ran.complaint == "session-coordinator: no such session"
    unknown = await ask_beside("turn", UNKNOWN_TURN)
    assert unknown.code == 1
    assert unknown.complaint.startswith("session-coordinator: no such turn")


async def test_turns_of_a_session_are_listed_in_order(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: those that still have a record, the ended and the running one."""
    first = await answered(fleet, asking(key="k1"))
    async with fleet.turn(asking()) as second:
        ran = await ask_beside("turns", "chat", "--json")
        shown = await ask_beside("turns", "chat")
    told = ran.json["data"]
    assert [(one["id"], one["state"]) for one in told] == [(first.id, "completed"), (second.id, "running")]
    view = await fleet.turn_view("default", first.id)
    assert view is not None
    assert told[0] == turn_json(view)
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        [first.id, "completed"],
        [second.id, "running"],
    ]


async def test_without_an_id_the_running_turns_are_listed(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: all of the tenant, on whichever replica, and nobody else's."""
    await answered(fleet, asking("ended"))
    async with fleet.turn(asking("one")) as one, fleet.turn(asking("two")) as two, fleet.turn(asking("x", "acme")):
        running = (await ask_beside("turns", "--json")).json["data"]
        assert {turn["id"]: turn["session_id"] for turn in running} == {one.id: "one", two.id: "two"}
        assert [turn["fence"] for turn in running] == sorted([one.fence, two.fence])
        assert all(0 < turn["expires_in_ms"] <= 30_000 for turn in running)


async def test_a_turn_is_shown_without_its_answer(fleet: Coordinator, ask_beside: AskLater) -> None:
    """K2: state, times, key and how its answer is kept; not what was said."""
    turn = await answered(fleet, asking(key="k1"))
    ran = await ask_beside("turn", turn.id, "--json")
    assert ran.json["object"] == "turn"
    assert (ran.json["state"], ran.json["status"], ran.json["kept"]) == ("completed", 200, "body")
    assert (ran.json["key"], ran.json["session_id"]) == (key_digest("k1"), "chat")
    assert ran.json["started_ms"] <= ran.json["ended_ms"]
    shown = await ask_beside("turn", turn.id)
    assert f"turn        {turn.id}\n" in shown.out
    assert "answer" not in ran.out + shown.out


async def test_replicas_that_serve_are_listed(ask_beside: AskLater, store_server: StoreServer) -> None:
    """K2: who is there by its own word; a verb that looks is no replica."""
    with Replica(store=store_server.store_url) as replica:
        # A first heartbeat that was put off comes with the next, 5 s later.
        await until(lambda: store_server.cli("SCARD", REPLICAS) == 1, timeout_s=10, what="a heartbeat of the replica")
        told = (await ask_beside("replicas", "--json")).json["data"]
        shown = (await ask_beside("replicas")).out
        assert [one["pid"] for one in told] == [replica.pid]
    assert shown.splitlines()[0].startswith("REPLICA")
    assert told[0]["id"] in shown


async def test_looking_at_a_dead_turn_settles_it_as_a_replica_would(
    fleet: Coordinator, ask_beside: AskLater, store_server: StoreServer
) -> None:
    """G6, F7: it reads interrupted, and its used key is kept for as long as the replicas are configured to."""
    keys = TenantKeys("default")
    for number, key_ttl in enumerate(["0", "1h"]):
        key = f"k{number}"
        async with fleet.turn(asking(f"chat-{number}", key=key)) as turn:
            store_server.cli("ZADD", keys.running, 1, turn.id)  # its lease ended long ago
            assert turn.id not in (await ask_beside("turns")).out
            ran = await ask_beside("turn", turn.id, "--json", COORDINATOR_KEY_TTL=key_ttl)
            assert ran.json["state"] == "interrupted"
        left_ms = store_server.cli("PTTL", keys.idempotency(key_digest(key)))
        assert left_ms == -1 if key_ttl == "0" else 3_500_000 < left_ms <= 3_600_000


MINTED = f"ses_m{'0' * 24}_1_{'0' * 16}"
VERBS = (
    ["sessions"],
    ["session", "x"],
    ["turns"],
    ["turns", "x"],
    ["turn", UNKNOWN_TURN],
    ["replicas"],
    ["settings"],
    ["reset", MINTED],
    ["cancel", "x"],
    ["cancel", UNKNOWN_TURN],
    ["delete", "x"],
    ["prune"],
)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_store_that_is_away_is_one_line(run: Run, words: list[str]) -> None:
    """J1, J8: exit code 1, which store, no password."""
    ran = run(*words, "--store", f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    assert ran.code == 1
    assert ran.complaint.startswith("session-coordinator: the store cannot be reached: redis://***@127.0.0.1:")


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_wrong_option_is_one_line(run: Run, words: list[str]) -> None:
    """K2: exit code 2, with the flag that is wrong."""
    tenant = {} if words in (["replicas"], ["settings"]) else {"--tenant": "a b"}
    for flag, value in {"--store": "db:6379", "--lease-ttl": "x", "--nope": "1", **tenant}.items():
        ran = run(*words, flag, value)
        assert ran.code == 2
        assert flag in ran.complaint


def test_an_id_that_no_client_can_send_is_refused(store_server: StoreServer) -> None:
    """B3: bytes that are not UTF-8 are a mistake of the command line, not a failure."""
    ran = start("session", b"\xff".decode("utf-8", "surrogateescape"), "--store", store_server.store_url)
    assert ran.code == 2
    assert "not valid UTF-8" in ran.complaint


async def test_a_reader_that_leaves_is_no_failure(fleet: Coordinator, store_server: StoreServer) -> None:
    """K2: `sessions | head` ends quietly."""
    await answered(fleet, asking())
    command = [*COMMAND, "sessions", "--store", store_server.store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert await asyncio.to_thread(process.stderr.read) == b""


def test_the_command_alone_shows_its_verbs() -> None:
    """K2: asked nothing, it says what can be asked."""
    ran = start()
    assert ran.code == 2
    assert not ran.err
    for verb in ("serve", "keys", "sessions", "session", "turns", "turn", "replicas", "cancel", "delete", "prune"):
        assert f" {verb} " in ran.out
