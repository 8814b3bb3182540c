"""Idempotency keys over replicas that share nothing but the store."""

import asyncio

import pytest

from tests.processes.fleet import Fleet


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_retry_elsewhere_replays_also_when_its_session_is_gone(fleet, stream, session_id):
    """F1, F2: byte for byte on every replica, naming the session it ran in though that is deleted, and nothing else may
    use the key; of a deleted session's stream the log is gone, and it is told again with the same words and ids."""
    options = {"session_id": session_id, "stream": stream, "key": "k"}
    first = await fleet.chat("Grüße 🙂", **options)
    for deleted in (False, True):
        if deleted:
            assert (await fleet.delete(first.session_id)).status == 200
            await fleet.prune()
        for n in range(3):
            again = await fleet.chat("Grüße 🙂", at=n, **options)
            assert (again.status, again.text(), again.session_id) == (200, first.text(), first.session_id)
            assert again.replayed
            if stream and deleted:
                assert (again.events()[-1], b"chatcmpl-1" in again.body) == ("[DONE]", True)
            else:
                assert again.body == first.body
            others = [
                await fleet.chat("changed", at=n, **options),
                await fleet.chat("Grüße 🙂", at=n, **{**options, "session_id": "other"}),
                await fleet.chat("Grüße 🙂", at=n, body={"temperature": 1}, **options),
            ]
            assert [(reply.status, reply.code) for reply in others] == [(409, "admission_conflict")] * 3
    assert fleet.upstream.count == 1
    opened = await fleet.chat("Grüße 🙂", stream=stream)
    assert (opened.replayed, opened.session_id != first.session_id) == (False, True)


async def test_a_key_spent_on_another_session_stays_spent(fleet):
    """F2: also when that session is deleted and pruned away."""
    await fleet.chat("hello", session_id="one", key="k")
    await fleet.delete("one")
    await fleet.prune()
    for n in range(3):
        refused = await fleet.chat("hello", session_id="two", key="k", at=n)
        assert (refused.status, refused.code) == (409, "admission_conflict")
    assert (await fleet.session("two")).status == 404
    assert fleet.upstream.count == 1


async def together(fleet: Fleet, count: int, **options) -> list:
    """The same keyed request to `count` replicas, let go at one barrier."""
    barrier = asyncio.Barrier(count)

    async def ask(n):
        await barrier.wait()
        return await fleet.chat("hello", at=n, **options)

    return await asyncio.gather(*(ask(n) for n in range(count)))


async def test_fifty_pairs_run_once_each(fleet):
    """F1, F3: of two simultaneous identical requests to two replicas one runs, and both get its answer; no 5xx."""
    for pair in range(50):
        options = {"key": f"k{pair}", "stream": pair % 3 == 0, "session_id": f"s{pair}" if pair % 2 else None}
        one, other = await together(fleet, 2, model="slow:0.002" if pair % 5 == 0 else "ok", **options)
        assert (one.status, other.status) == (200, 200)
        assert one.body == other.body
        assert one.session_id == other.session_id
        assert sorted((one.replayed, other.replayed)) == [False, True]
        assert fleet.upstream.count == pair + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_elsewhere_joins_the_running_turn(fleet, stream):
    """F3: retries on the other replicas wait for the turn and get its answer; it runs once."""
    running = await fleet.hold("one two", key="k", at=0, stream=stream)
    joining = [asyncio.create_task(fleet.chat("one two", model="gate", key="k", at=n, stream=stream)) for n in (1, 2)]
    await asyncio.wait(joining, timeout=0.2)
    assert not any(task.done() for task in joining)
    fleet.upstream.release()
    first, *joined = await asyncio.gather(running, *joining)
    assert [(reply.status, reply.body) for reply in joined] == [(200, first.body)] * 2
    assert [reply.replayed for reply in joined] == [True, True]
    assert fleet.upstream.count == 1
