"""Every route that starts a turn takes the lease: in pairs, over two replicas, on one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest

from gateway_adapter.app import make_app
from gateway_adapter.settings import GatewaySettings
from tests.faults.scenario import Story
from tests.processes.fleet import Fleet
from tests.support.clients import Reply
from tests.support.waiting import until

Ask = Callable[[Fleet, int, str, str], Coroutine[Any, Any, Reply]]
"""A request on a replica for a session, with a text of its own: `gate` is its model."""


def chat(*, key: bool = False, **options: Any) -> Ask:
    """A chat completion."""
    return lambda fleet, at, session, text: fleet.chat(
        text, at=at, session_id=session, model="gate", key=text.replace(" ", "-") if key else None, **options
    )


def post(path: str, *, where: str = "header", key: bool = False, **body: Any) -> Ask:
    """A request that names the session in a header, or in a member of its body."""

    def ask(fleet: Fleet, at: int, session: str, text: str) -> Coroutine[Any, Any, Reply]:
        named = {} if where == "header" else {where: session}
        content = {"model": "gate", "input": text, **named, **body}
        options: dict[str, Any] = {"session_id": session} if where == "header" else {}
        return fleet.request("POST", path, json=content, at=at, key=text.replace(" ", "-") if key else None, **options)

    return ask


TURNS: dict[str, list[Ask]] = {
    "/v1/chat/completions": [chat(), chat(stream=True), chat(key=True)],
    "/v1/responses": [
        post("/v1/responses"),
        post("/v1/responses", stream=True, where="conversation"),
        post("/v1/responses", background=True, key=True),
    ],
    "/v1/runs": [post("/v1/runs", where="session_id"), post("/v1/runs", where="session_id", key=True)],
}
"""Routes that start a turn, and ways to ask for one there."""

NO_TURNS = {
    "/v1/responses/{id}/cancel",
    "/v1/runs/{id}/stop",
    "/v1/conversations",
    "/v1/conversations/{id}",
    "/v1/conversations/{id}/items",
    "/api/sessions",
    "/api/sessions/{id}/reset",
    "/api/sessions/{id}/fork",
    "/api/sessions/{id}/cancel",
}
"""Routes that may be posted to and never call the upstream."""


def test_every_route_has_a_row() -> None:
    """B24: a new route that may be posted to is put on one side or the other, or this fails."""
    router = make_app(GatewaySettings()).router
    routes = {route.resource.canonical for route in router.routes() if route.method in ("POST", "*") and route.resource}
    assert routes == TURNS.keys() | NO_TURNS


ROWS = [(route, number) for route, asks in TURNS.items() for number in range(len(asks))]


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([(a, b) for a, b in product(ROWS, ROWS) if a[1] == 0 or b[1] == 0], id="short"),
        pytest.param(list(product(ROWS, ROWS)), id="long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_no_two_of_them_overlap(start, story, upstream, pairs):
    """G1, B24: while one holds the session at one replica, the other waits at another; both are answered, in order."""
    fleet = await start(2, "--queue-limit", "64")
    # Sessions do not wait for each other: all pairs go on side by side, and each is watched by its own marker.
    await asyncio.gather(*(one_pair(fleet, story, f"p{n}", *pair) for n, pair in enumerate(pairs)))
    story.tell(f"{len(pairs)} pairs: {upstream.count} upstream calls")
    assert upstream.count == 2 * len(pairs)


async def one_pair(fleet: Fleet, story: Story, name: str, first: tuple[str, int], second: tuple[str, int]) -> None:
    """Two turns on one session, the second sent while the first runs."""
    at = story.random.randrange(2)
    marker = f"{name} first"  # the conversation's first words, which both calls begin with

    def calls() -> list[Any]:
        return fleet.upstream.calls_of(marker)

    asking = [asyncio.create_task(TURNS[first[0]][first[1]](fleet, at, name, marker))]
    await until(lambda: len(calls()) == 1, timeout_s=10, what=f"{name}: a call of {first}")
    asking.append(asyncio.create_task(TURNS[second[0]][second[1]](fleet, 1 - at, name, f"{name} second")))
    await asyncio.sleep(0.3)
    assert len(calls()) == 1, f"{second} ran beside {first}"
    fleet.upstream.release(marker)
    await until(lambda: len(calls()) == 2, timeout_s=10, what=f"{name}: {second} after {first}")
    fleet.upstream.release(marker)
    replies = await asyncio.gather(*asking)
    assert {reply.status for reply in replies} <= {200, 202}
    assert fleet.upstream.overlap(marker) == 1


Named = Callable[[Fleet, int, str, str], Coroutine[Any, Any, Reply]]
"""A request on a replica, given the conversation's declared key or opening, and its session's id."""

BY_KEY: list[Named] = [
    lambda fleet, at, key, session: fleet.chat("hello", at=at, session_key=key, model="gate"),
    lambda fleet, at, key, session: fleet.chat("hello", at=at, session_id=session, model="gate", stream=True),
    lambda fleet, at, key, session: fleet.request(
        "POST", "/v1/responses", json={"model": "gate", "input": "hello"}, at=at, session_key=key
    ),
    lambda fleet, at, key, session: fleet.request(
        "POST", "/v1/runs", json={"model": "gate", "input": "hello", "session_id": session}, at=at
    ),
]
BY_OPENING: list[Named] = [
    lambda fleet, at, opening, session: fleet.chat(opening, at=at, model="gate"),
    lambda fleet, at, opening, session: fleet.chat("more", at=at, session_id=session, model="gate"),
    lambda fleet, at, opening, session: fleet.request(
        "POST", "/v1/responses", json={"model": "gate", "input": "more", "conversation": session}, at=at
    ),
]


@pytest.mark.parametrize("count", [pytest.param(8, id="short"), pytest.param(100, id="long", marks=[pytest.mark.slow])])
async def test_however_it_is_named(start, story, upstream, count):
    """G1, A7, B58: one conversation, named by its declared key, by its opening, or by its session's id."""
    fleet = await start(2, "--implicit-turns", "exclusive", "--transcripts", "all")
    declared = (await fleet.chat("hello", session_key="chat 42")).session_id
    implicit = (await fleet.chat("good morning")).session_id
    pairs = [("chat 42", declared, *pair) for pair in product(BY_KEY, BY_KEY)]
    pairs += [("good morning", implicit, *pair) for pair in product(BY_OPENING, BY_OPENING)]
    upstream.max_overlap = 0
    for name, session, first, second in story.random.sample(pairs, min(count, len(pairs))):
        at, calls = story.random.randrange(2), upstream.count
        asking = [asyncio.create_task(first(fleet, at, name, session or ""))]
        await upstream.until(lambda up, calls=calls: up.count == calls + 1)
        asking.append(asyncio.create_task(second(fleet, 1 - at, name, session or "")))
        await asyncio.sleep(0.1)
        assert upstream.running == 1
        upstream.release()
        await upstream.until(lambda up, calls=calls: up.count == calls + 2)
        upstream.release()
        assert {reply.status for reply in await asyncio.gather(*asking)} <= {200, 202}
        await upstream.until(lambda up: up.running == 0)
        await until(lambda: fleet.server.cli("EXISTS", "coord1:{default}:running") == 0)
    story.tell(f"{min(count, len(pairs))} pairs of {len(pairs)}")
    assert upstream.max_overlap == 1
