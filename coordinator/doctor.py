"""A check of the server and its settings: what would break a promise, and the command that mends it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic, time_ns
from typing import Any, Literal

from coordinator.errors import CoordinatorError, ScriptError, StoreUnavailable
from coordinator.fleet import Fleet
from coordinator.keys import SCHEMA
from coordinator.scripts import load, names
from coordinator.store import Store

_OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
_CLOCK_APART_MS = 1_000  # nothing depends on clocks being equal; this far apart, people misread times
_SLOW_MS = 20  # a turn makes two round trips; beyond this they are felt
_HEADROOM = 0.8  # share of maxmemory in use from which on it is time to act
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `repair` is the command that mends it, '' where nothing is to be mended."""

    level: Literal["ok", "warning", "error"]
    name: str
    message: str
    repair: str = ""


async def examine(store: Store, fleet: Fleet) -> AsyncIterator[Finding]:
    """Looks at everything, one finding each. A server that does not answer is the first and only one."""
    try:
        yield await _latency(store)
    except StoreUnavailable as error:
        yield Finding(
            "error", "reachable", f"the store does not answer: {error}", "check --store, the server, the network"
        )
        return
    if store.embedded:
        yield Finding("warning", "kind", "the embedded store forgets with its process", "serve --store redis://...")
        return
    info = await _info(store)
    yield _version(info)
    yield await _eviction(store)
    yield await _persistence(store, info)
    yield await _replication(store, info)
    yield _memory(info)
    yield await _cluster(store, info)
    yield await _clock(store)
    yield await _scripts(store)
    async for finding in _schema(fleet):
        yield finding


async def _latency(store: Store) -> Finding:
    taken = []
    for _ in range(_ROUNDS):
        started = monotonic()
        await store.execute("PING")
        taken.append((monotonic() - started) * 1000)
    median = sorted(taken)[_ROUNDS // 2]
    if median > _SLOW_MS:
        return Finding(
            "warning", "latency", f"a round trip takes {median:.1f} ms", "move the replicas nearer to the store"
        )
    return Finding("ok", "latency", f"a round trip takes {median:.1f} ms")


async def _info(store: Store) -> dict[str, str]:
    raw = await store.execute("INFO")
    if isinstance(raw, dict):
        return {str(name): str(value) for name, value in raw.items()}
    lines = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, _, value in lines}


async def _config(store: Store, name: str) -> str | None:
    """A setting of the server; None where it does not tell."""
    try:
        reply: Any = await store.execute("CONFIG", "GET", name)
    except (ScriptError, StoreUnavailable):
        return None
    values = list(reply.values()) if isinstance(reply, dict) else reply[1::2]
    if not values:
        return None
    return values[0].decode() if isinstance(values[0], bytes) else str(values[0])


def _version(info: dict[str, str]) -> Finding:
    kind = "valkey" if "valkey_version" in info else "redis"
    text = info.get("valkey_version") or info.get("redis_version", "0")
    found = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if found < _OLDEST[kind]:
        least = ".".join(map(str, _OLDEST[kind]))
        return Finding("error", "version", f"{kind} {text} is too old", f"upgrade to {kind} {least} or later")
    return Finding("ok", "version", f"{kind} {text}")


async def _eviction(store: Store) -> Finding:
    policy = await _config(store, "maxmemory-policy")
    if policy is None:
        return Finding("warning", "eviction", "the server does not tell its maxmemory-policy", "look at it by hand")
    if policy != "noeviction":
        return Finding(
            "error",
            "eviction",
            f"maxmemory-policy is {policy}: the server may drop leases, keys and tombstones",
            "redis-cli CONFIG SET maxmemory-policy noeviction",
        )
    return Finding("ok", "eviction", "maxmemory-policy is noeviction")


async def _persistence(store: Store, info: dict[str, str]) -> Finding:
    saves = await _config(store, "save")
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            return Finding("error", "persistence", "the last write to the AOF failed", "free the server's disk")
        return Finding("ok", "persistence", "AOF is on")
    if info.get("connected_slaves", "0") != "0":
        return Finding(
            "error",
            "persistence",
            "AOF is off and there are replicas: a primary that restarts empty empties them too",
            "redis-cli CONFIG SET appendonly yes",
        )
    kept = "only snapshots are written" if saves else "nothing is written to disk"
    return Finding("warning", "persistence", f"{kept}: a restart loses turns", "redis-cli CONFIG SET appendonly yes")


async def _replication(store: Store, info: dict[str, str]) -> Finding:
    if info.get("role", "master") != "master":
        return Finding(
            "error", "replication", "this server is a replica: it takes no writes", "name the primary in --store"
        )
    count = int(info.get("connected_slaves", "0") or 0)
    least = await _config(store, "min-replicas-to-write")
    if count and least == "0":
        return Finding(
            "warning",
            "replication",
            f"{count} replicas, and min-replicas-to-write is 0: a primary cut off from them goes on taking writes",
            "redis-cli CONFIG SET min-replicas-to-write 1",
        )
    return Finding("ok", "replication", f"{count} replicas" if count else "no replicas")


def _memory(info: dict[str, str]) -> Finding:
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if most and used > _HEADROOM * most:
        return Finding(
            "warning",
            "memory",
            f"{used / most:.0%} of maxmemory is used: when it is full, new work is refused",
            "redis-cli CONFIG SET maxmemory <more>, or session-coordinator prune --horizon 7d",
        )
    return Finding(
        "ok", "memory", f"{used / 2**20:.1f} MiB used" + (f" of {most / 2**20:.0f}" if most else ", no limit")
    )


async def _cluster(store: Store, info: dict[str, str]) -> Finding:
    if info.get("cluster_enabled") != "1":
        return Finding("ok", "cluster", "one server")
    text = (await store.execute("CLUSTER", "INFO")).decode()
    facts = dict(line.split(":", 1) for line in text.split() if ":" in line)
    if facts.get("cluster_state") != "ok" or facts.get("cluster_slots_ok") != "16384":
        return Finding(
            "error",
            "cluster",
            f"state {facts.get('cluster_state')}, {facts.get('cluster_slots_ok')} of 16384 slots are served",
            "redis-cli --cluster fix <host:port>",
        )
    return Finding("ok", "cluster", "all slots are served")


async def _clock(store: Store) -> Finding:
    before_ms = time_ns() // 10**6
    seconds, micros = await store.execute("TIME")
    apart_ms = abs(int(seconds) * 1000 + int(micros) // 1000 - before_ms)
    if apart_ms > _CLOCK_APART_MS:
        return Finding(
            "warning", "clock", f"the store's clock is {apart_ms / 1000:.1f} s from this one", "check NTP on both"
        )
    return Finding("ok", "clock", f"{apart_ms} ms from this one")


async def _scripts(store: Store) -> Finding:
    try:
        for name in names():
            await store.everywhere("SCRIPT", "LOAD", load(name).text)
    except CoordinatorError as error:
        return Finding(
            "error", "scripts", f"a script cannot be loaded: {error}", "grant the user +script +evalsha +eval; see docs"
        )
    return Finding("ok", "scripts", f"{len(names())} scripts are loaded")


async def _schema(fleet: Fleet) -> AsyncIterator[Finding]:
    agreed = await fleet.agreed()
    if not agreed:
        yield Finding("ok", "settings", "nothing is agreed on yet: the first replica writes it down")
        return
    schema = int(agreed.get("schema", "0"))
    if schema > SCHEMA:
        yield Finding(
            "error", "schema", f"the store's schema is {schema}, this version knows {SCHEMA}", "upgrade this replica"
        )
    else:
        yield Finding("ok", "schema", f"schema {schema}")
    yield Finding("ok", "settings", ", ".join(f"{name}={value}" for name, value in sorted(agreed.items())))
