"""Affinity scopes: opaque, the same within a generation, and never again after it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator import Coordinator, Declared, Explicit, Implicit, Minted, Settings
from tests.coordinator.hosting import HARMLESS, HOME, REASONS, TENANT, Host
from tests.support.servers import StoreServer

Start = Callable[..., Awaitable[Host]]
FORMS = {"gwk_": re.compile(r"gwk_[0-9a-f]{24}"), "gws_": re.compile(r"gws_[0-9a-f]{24}")}


async def scopes_of(host: Host, *session_ids: str) -> list[str]:
    """The scopes of a host's ids."""
    return [await host.coordinator.scope(TENANT, session_id) for session_id in session_ids]


async def record(host: Host, session_id: str, key: str | None = HOME.key, **options: Any) -> str:
    """Records a host's id; its scope then."""
    await host.coordinator.session_record(TENANT, session_id, source=HOME.source, key=key, **options)
    return await host.coordinator.scope(TENANT, session_id)


async def test_nothing_can_be_read_in_a_scope(host: Host) -> None:
    """D1, B51: `gwk_` or `gws_` and 24 hex, whatever tenant, source, key and id are made of."""
    words = ("beefcafe", "0123456789abcdef", "chat-42", "a" * 200, "é{}*", "gwk_", "deadbeef" * 3)
    for word in words:
        said = await host.say(Declared(word, word), tenant="beefcafe")
        named = await host.say(Explicit(word), tenant="beefcafe")
        found = await host.say(Implicit((word.encode(),)), tenant="beefcafe")
        minted = await host.say(Minted(), tenant="beefcafe")
        for one, form in ((said, "gwk_"), (named, "gws_"), (found, "gws_"), (minted, "gws_")):
            assert FORMS[form].fullmatch(one.scope)
            own = one.scope[4:]
            hidden = (word, "beefcafe", one.session_id, one.session_id[5:29], one.session_id[-16:])
            assert not any(part in own or own in part for part in hidden if part)


async def test_a_scope_is_the_same_on_every_replica(start_host: Start) -> None:
    """D2: for every turn of a generation, for its session, and for its id, also by name."""
    hosts = [await start_host() for _ in range(3)]
    said = [await host.say() for host in hosts] + [await host.say() for host in hosts]
    named = await hosts[1].say(Explicit(said[0].session_id))
    views = [await host.coordinator.session(TENANT, said[0].session_id) for host in hosts]
    by_id = [await host.coordinator.scope(TENANT, said[0].session_id) for host in hosts]
    assert len({*(one.scope for one in said), named.scope, *(view.scope for view in views), *by_id}) == 1


async def test_four_physical_ids_have_one_scope(start_host: Start) -> None:
    """D2, B61: a host that mints an id for each reply, on any replica, keeps the scope of the conversation's turns."""
    here, there = await start_host(), await start_host()
    first = await record(here, "p1")
    others = [await record(there, "p2"), await record(here, "p3"), (await there.say()).scope, await record(there, "p4")]
    assert others == [first] * 4
    assert await scopes_of(there, "p1", "p2", "p3", "p4") == [first] * 4


@pytest.mark.parametrize("how", ["reset", "end", "promote"])
async def test_a_scope_is_another_after_each_boundary(host: Host, how: str) -> None:
    """D2, C6: each of the six reasons, by a reset, by the end of a host's id, or by a promotion; and after deletion."""
    seen = [(await host.say()).scope]
    for number, reason in enumerate(REASONS):
        await record(host, f"p{number}")
        if how == "reset":
            await host.coordinator.reset_session(TENANT, HOME, reason=reason)
        elif how == "end":
            assert await host.coordinator.session_end(TENANT, f"p{number}", reason)
        else:
            assert await host.coordinator.session_promote(TENANT, f"p{number}", reason)
        seen.append((await host.say()).scope)
        assert await host.coordinator.scope(TENANT, f"p{number}") == seen[-2]
    await host.coordinator.delete_session(TENANT, (await host.say()).session_id)
    seen.append((await host.say()).scope)
    await host.coordinator.prune(TENANT, 0)
    seen.append((await host.say()).scope)
    assert len(set(seen)) == 9


@pytest.mark.parametrize("reason", HARMLESS)
async def test_a_scope_stays_after_any_other_end(host: Host, reason: str) -> None:
    """D2, C6: compression, agent_close, branched: the next id and the next turn have the scope of the ones before."""
    first = await record(host, "p1")
    await host.coordinator.session_end(TENANT, "p1", reason)
    follows = {"parent": "p1", "relation": "compression"} if reason == "compression" else {}
    assert [await record(host, "p2", **follows), (await host.say()).scope, *await scopes_of(host, "p1")] == [first] * 3


async def test_another_source_is_another_scope(host: Host) -> None:
    """D2, C1, B51: and another tenant, and pairs or generations that are one text when glued together."""
    pairs = [("telegram", "chat-42"), ("discord", "chat-42"), ("a|b", "c"), ("a", "b|c"), ("a:1", "2"), ("a", "1:2")]
    scopes = [(await host.say(Declared(*pair), tenant=tenant)).scope for pair in pairs for tenant in (TENANT, "beta")]
    assert len(set(scopes)) == 2 * len(pairs)


@pytest.mark.parametrize("relation", ["branch", "delegate", "tool", "review"])
async def test_a_fork_keeps_a_scope_of_its_own(host: Host, relation: Any) -> None:
    """D2: with the key or without, before and after its parent's boundary, and when it is compressed."""
    parent = await record(host, "p1")
    fork = await record(host, "f1", parent="p1", relation=relation)
    second = await record(host, "f2", parent="p1", relation=relation)
    after = await record(host, "f3", parent="f1", relation="compression")
    assert len({parent, fork, second, after}) == 4
    assert all(FORMS["gws_"].fullmatch(scope) for scope in (fork, second, after))
    assert await record(host, "f1") == fork
    await host.coordinator.session_end(TENANT, "p1", "session_reset")
    assert await scopes_of(host, "f1") == [fork]


async def test_a_session_without_a_key_has_its_own(host: Host) -> None:
    """D5: stable for each session, a host's or ours, and never a conversation's."""
    unbound = await record(host, "p1", key=None)
    assert await record(host, "p1", key=None) == unbound
    named = [(await host.say(Explicit("mine"))).scope for _ in range(2)]
    assert {*named, await host.coordinator.scope(TENANT, "mine")} == {named[0]}
    found = [await host.say(Implicit((b"hi",))) for _ in range(2)]
    assert {*(one.scope for one in found), *await scopes_of(host, found[0].session_id)} == {found[0].scope}
    scopes = {unbound, named[0], found[0].scope, *await scopes_of(host, "unknown")}
    assert len(scopes) == 4
    assert all(FORMS["gws_"].fullmatch(scope) for scope in scopes)


async def test_no_scope_comes_again_after_a_total_loss(host: Host) -> None:
    """J12, C5: the nonce is in every one of them."""

    async def all_scopes() -> list[str]:
        return [
            (await host.say()).scope,
            await record(host, "p1"),
            await record(host, "p2", key=None),
            (await host.say(Explicit("mine"))).scope,
            (await host.say(Implicit((b"hi",)))).scope,
        ]

    before = await all_scopes()
    await asyncio.to_thread(host.server.flushall)
    after = await all_scopes()
    assert (len(set(before)), len(set(before + after))) == (4, 8)


async def test_without_the_store_no_conversations_scope_is_used() -> None:
    """D3: it fails closed: an id of its own for a bound id, never the last one known, and the same each time."""
    with StoreServer() as own:
        async with Coordinator.open(own.store_url, Settings(patience_ms=500)) as coordinator:
            away = Host(coordinator, own)
            bound = await record(away, "p1")
            said = await away.say()
            assert bound == said.scope
            own.freeze()
            closed = [await away.coordinator.scope(TENANT, "p1") for _ in range(2)]
            assert FORMS["gws_"].fullmatch(closed[0])
            assert closed[0] == closed[1]
            assert (
                await away.coordinator.scope(TENANT, said.session_id) == said.scope
            )  # an id of ours tells all by itself
            own.thaw()
            assert await away.coordinator.scope(TENANT, "p1") == bound


async def test_one_read_tells_verdict_source_and_key(host: Host) -> None:
    """D3: however often an id is bound, ended and deleted meanwhile, no scope is a mixture of two states."""
    allowed = {await host.coordinator.scope(TENANT, "p1")}

    async def change() -> None:
        for number in range(20):
            allowed.add(await record(host, f"q{number}"))
            await host.coordinator.reset_session(TENANT, HOME)
        allowed.add(await record(host, "p1", key=None))
        allowed.add(await record(host, "p1"))

    changing = asyncio.create_task(change())
    seen = set()
    while not changing.done():
        seen.add(await host.coordinator.scope(TENANT, "p1"))
    await changing
    seen.add(await host.coordinator.scope(TENANT, "p1"))
    assert seen <= allowed
