"""The mailbox: messages that make things faster, and nothing that depends on them."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from coordinator.mailbox import Mailbox
from coordinator.settings import Settings
from coordinator.store import Store
from tests.support.waiting import until

CHANNEL = "coord1:replica:r1"


@pytest.fixture
async def mailbox(store_server):
    """The open mailbox of replica r1, which counts the calls to look for wishes to stop."""
    looks: list[None] = []
    async with (
        Store(store_server.url, Settings(replica="r1")) as store,
        Mailbox(store, "r1", lambda: looks.append(None)) as opened,
    ):
        opened.looks = looks
        await until(lambda: listening(store_server))
        yield opened


def listening(server, channel=CHANNEL):
    """Whether somebody is subscribed to the channel."""
    return server.cli("PUBSUB", "NUMSUB", channel)[1] == 1


async def test_a_waiter_is_woken(mailbox, store_server):
    """G11: by its own message and no other's; what nobody waits for is dropped."""
    with mailbox.expecting("t1") as mine, mailbox.expecting("t2") as other:
        for text in ("wake t3", "wake", "", "nonsense t1", b"\xff\xfe", "wake t1"):
            store_server.cli("PUBLISH", CHANNEL, text)
        await asyncio.wait_for(mine.wait(), 1)
        assert not other.is_set()
    store_server.cli("PUBLISH", CHANNEL, "wake t1")
    assert mailbox.looks == []


async def test_a_wish_to_stop_has_the_keeper_look(mailbox, store_server):
    """G7: the message says only that there is something to be seen."""
    store_server.cli("PUBLISH", CHANNEL, "cancel t1")
    await until(lambda: len(mailbox.looks) == 1)


async def test_all_are_woken_at_once(mailbox):
    """J6: whoever waits here looks again, followers of turns too."""
    with mailbox.expecting("t1") as one, mailbox.expecting("t2") as other:
        async with mailbox.following("coord1:{default}:events:t3") as third:
            mailbox.wake_all()
            assert all(event.is_set() for event in (one, other, third))


async def test_a_cut_line_is_opened_again(mailbox, store_server):
    """B45, B73: however often it is cut, within a second messages arrive again, also those of the turns followed."""
    channel = "coord1:{default}:events:t9"
    async with mailbox.following(channel) as news:
        for _ in range(3):
            began = monotonic()
            store_server.cli("CLIENT", "KILL", "TYPE", "pubsub")
            with mailbox.expecting("t1") as event:
                await until(lambda: listening(store_server) and listening(store_server, channel), timeout_s=2)
                news.clear()
                store_server.cli("PUBLISH", CHANNEL, "wake t1")
                store_server.cli("PUBLISH", channel, "3")
                await asyncio.wait_for(asyncio.gather(event.wait(), news.wait()), 1)
            assert monotonic() - began < 2


async def test_one_line_for_any_number_of_followers(mailbox, store_server):
    """F3: they share this replica's connection; the last one to leave takes the subscription along."""
    channel = "coord1:{default}:events:t9"
    clients = len(store_server.cli("CLIENT", "LIST", "TYPE", "pubsub").splitlines())
    async with mailbox.following(channel) as one, mailbox.following(channel) as other:
        await until(lambda: listening(store_server, channel))
        store_server.cli("PUBLISH", channel, "1")
        await asyncio.wait_for(asyncio.gather(one.wait(), other.wait()), 1)
        assert len(store_server.cli("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) == clients
    await until(lambda: not listening(store_server, channel))
    assert listening(store_server)


async def test_without_a_store_it_opens_and_closes(store_server):
    """J1: nothing depends on it, a start without the store least of all."""
    began = monotonic()
    async with Store("redis://127.0.0.1:1/0", Settings()) as store, Mailbox(store, "r1", lambda: None) as mailbox:
        with mailbox.expecting("t") as event:
            mailbox.wake_all()
            assert event.is_set()
    assert monotonic() - began < 2
