"""The gateway over HTTP against a bare reverse proxy: the same clients, the same model server, the same two cores."""

import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from benchmarks.rounds import interleaved
from benchmarks.services import Service, cpu_seconds, gateway
from benchmarks.store import script_stats
from benchmarks.wire import CHUNKS, load
from tests.support.process import ChildProcess
from tests.support.servers import StoreServer

CLIENTS, PACED_CLIENTS = 32, 8
FAST, PACED = "fast", "paced"
"""Models: one writes its events as fast as it can, the other with a pause between them."""
_COUNTED_S = 1.0  # of requests whose scripts are counted


@dataclass(frozen=True, slots=True)
class _Round:
    """Answers of a round, its length, and the processor time that the process in the middle used for it."""

    answers: int
    seconds: float
    cpu_seconds: float


class Setting:
    """Store, model server, gateway and proxy, each in a process of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self.store = stack.enter_context(StoreServer())
        model = stack.enter_context(Service("model"))
        self.gateway = stack.enter_context(gateway(self.store.url, model.url))
        self.proxy = stack.enter_context(Service("proxy", model.url))

    def side(
        self, process: ChildProcess, model: str, *, stream: bool = False, keyed: bool = False, clients: int = CLIENTS
    ) -> Callable[[float], Awaitable[_Round]]:
        """A side for `interleaved`: clients that send chat requests to this process."""

        async def run(seconds: float) -> _Round:
            before = cpu_seconds(process)
            requests = [_request(number, model, stream=stream, keyed=keyed) for number in range(clients)]
            answers, took_s = await load(process.port, requests, seconds)
            return _Round(answers, took_s, cpu_seconds(process) - before)

        return run


def _request(client: int, model: str, *, stream: bool, keyed: bool) -> Callable[[], bytes]:
    """The next request of a client, in a conversation of its own."""
    opening = [{"role": "system", "content": 200 * "s"}, {"role": "user", "content": f"I am client {client}"}]
    body = json.dumps({"model": model, "messages": opening, "stream": stream}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    if not keyed:
        whole = head + length + body
        return lambda: whole
    return lambda: b"%bIdempotency-Key: %b\r\n%b%b" % (head, uuid4().hex.encode(), length, body)


async def round_trips(seconds: float) -> list[Row]:  # noqa: ARG001 - counted, not timed
    """Scripts that a JSON turn over HTTP sends to the store."""
    rows = []
    with ExitStack() as stack:
        setting = Setting(stack)
        async with Redis.from_url(setting.store.url) as client:
            for kind in ("unkeyed", "keyed"):
                run = setting.side(setting.gateway, FAST, keyed=kind == "keyed")
                await run(_COUNTED_S)  # the first calls load the scripts
                before = await script_stats(client)
                answers = (await run(_COUNTED_S)).answers
                trips = ((await script_stats(client)).calls - before.calls) / answers
                rows.append(Row(f"round trips a turn, {kind}, JSON", trips, "", goal=Goal("=", 2, "")))
    return rows


async def requests(seconds: float) -> list[Row]:
    """JSON answers a second through the gateway, against the proxy."""
    with ExitStack() as stack:
        setting = Setting(stack)
        found = await interleaved(
            {
                "proxy": setting.side(setting.proxy, FAST),
                "unkeyed": setting.side(setting.gateway, FAST),
                "keyed": setting.side(setting.gateway, FAST, keyed=True),
            },
            seconds,
        )
    return [
        _rate("JSON, no key", found["unkeyed"], found["proxy"], Goal(">=", 0.75)),
        _rate("JSON, keyed", found["keyed"], found["proxy"]),
        _cpu("JSON, no key", found["unkeyed"], found["proxy"]),
        _cpu("JSON, keyed", found["keyed"], found["proxy"]),
    ]


async def streams(seconds: float) -> list[Row]:
    """Events a second through the gateway, stored before they are sent or not, against the proxy."""
    with ExitStack() as stack:
        setting = Setting(stack)
        found = await interleaved(
            {
                f"{pace} {name}": setting.side(process, pace, stream=True, keyed=keyed, clients=clients)
                for pace, clients in ((FAST, CLIENTS), (PACED, PACED_CLIENTS))
                for name, process, keyed in (
                    ("proxy", setting.proxy, False),
                    ("unkeyed", setting.gateway, False),
                    ("stored", setting.gateway, True),
                )
            },
            seconds,
        )
    rows = []
    for name, label, goal in (("stored", "SSE, events stored", Goal(">=", 0.6)), ("unkeyed", "SSE, no key", None)):
        rows.append(_rate(label, found[f"{FAST} {name}"], found[f"{FAST} proxy"], goal, CHUNKS, "chunks"))
    for name, label in (("stored", "SSE as models write, events stored"), ("unkeyed", "SSE as models write, no key")):
        rows.append(_cpu(label, found[f"{PACED} {name}"], found[f"{PACED} proxy"], CHUNKS, "chunk"))
    return rows


def _rate(
    what: str, ours: list[_Round], proxy: list[_Round], goal: Goal | None = None, each: int = 1, unit: str = "requests"
) -> Row:
    rates = [median(each * one.answers / one.seconds for one in rounds) for rounds in (ours, proxy)]
    return Row(what, rates[0], f"{unit}/s", "a bare proxy", rates[1], goal)


def _cpu(what: str, ours: list[_Round], proxy: list[_Round], each: int = 1, unit: str = "request") -> Row:
    costs = [median(1e6 * one.cpu_seconds / each / one.answers for one in rounds) for rounds in (ours, proxy)]
    return Row(f"processor time, {what}", costs[0], f"us/{unit}", "a bare proxy", costs[1])
