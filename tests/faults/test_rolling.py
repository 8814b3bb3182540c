"""Replicas that are replaced one after another, under load, as a deployment does it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import aiohttp

from tests.faults.scenario import Story, counted, rounds
from tests.processes.fleet import Fleet
from tests.support.clients import Reply

WORKERS = 8


@rounds(short=1, long=12, limit_s=300)
async def test_a_rolling_replacement_is_not_noticed(start, story, rounds):
    """J6, F1: every keyed request is answered once, nothing runs twice, and the only 5xx is `gateway_draining` with a
    time to wait."""
    fleet = await start(3, "--lease-ttl", "2s", "--drain-timeout", "5s")
    over = asyncio.Event()
    answers: dict[str, Reply] = {}
    seen: Counter[str] = Counter()
    working = [asyncio.create_task(work(fleet, story, f"w{n}", over, answers, seen)) for n in range(WORKERS)]
    for number in range(rounds):
        for at, replica in enumerate(fleet.replicas):
            began = time.monotonic()
            assert await asyncio.to_thread(replica.stop) == 0
            took = time.monotonic() - began
            await asyncio.to_thread(replica.start)
            story.tell(f"round {number}: replica {at} left after {took:.2f} s and is back; {len(answers)} answers")
            assert took < 5
    over.set()
    await asyncio.gather(*working)
    story.tell(f"{len(answers)} requests answered; on the way: {counted(list(seen.elements()))}")
    assert set(seen) <= {"gateway_draining", "no connection"}
    ran = Counter(call.json()["messages"][-1]["content"] for call in fleet.upstream.calls)
    assert {text: ran[text] for text in answers} == dict.fromkeys(answers, 1)
    assert sum(ran.values()) == len(answers)
    for text, reply in answers.items():
        assert reply.text() == text
    turns = [(await fleet.session(f"w{n}-{kind}")).json()["turns"] for n in range(WORKERS) for kind in ("own", "other")]
    assert sum(turns) == len(answers)


async def work(
    fleet: Fleet, story: Story, name: str, over: asyncio.Event, answers: dict[str, Reply], seen: Counter[str]
) -> None:
    """Asks one thing after another, each under a key, until it is answered: by whichever replica."""
    number = 0
    while not over.is_set():
        text = f"{name} asks {number}"
        session = f"{name}-own" if story.flip() else f"{name}-other"
        options = {"session_id": session, "key": text.replace(" ", "-"), "stream": story.flip()}
        answers[text] = await answered(fleet, text, seen, **options, model=f"slow:{story.random.uniform(0, 0.05):.3f}")
        number += 1
        await asyncio.sleep(story.random.uniform(0, 0.03))  # a load, not a race for the processor


async def answered(fleet: Fleet, text: str, seen: Counter[str], **options: Any) -> Reply:
    """What the request comes to, sent again as often as clients do."""
    for _ in range(200):
        try:
            reply = await fleet.chat(text, **options)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            seen["no connection"] += 1
            await asyncio.sleep(0.02)
            continue
        ended_well = reply.status == 200 and (not options["stream"] or reply.events()[-1:] == ["[DONE]"])
        if ended_well:
            return reply
        if reply.status == 200:  # a follower on a replica that leaves
            assert b"gateway_draining" in reply.body, reply.body
        else:
            assert (reply.code, reply.headers.get("Retry-After")) == ("gateway_draining", "1"), reply.body
        seen["gateway_draining"] += 1
        await asyncio.sleep(0.02)
    raise AssertionError(f"{text} was not answered")
