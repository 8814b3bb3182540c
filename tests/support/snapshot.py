"""The whole key space in comparable form, to show that a call changed nothing, or the same as another call did."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Generator
from typing import Any, NamedTuple, overload

import redis
import redis.asyncio

_READERS: dict[bytes, tuple[str, tuple[object, ...], dict[str, object]]] = {
    b"string": ("get", (), {}),
    b"hash": ("hgetall", (), {}),
    b"set": ("smembers", (), {}),
    b"zset": ("zrange", (0, -1), {"withscores": True}),
    b"list": ("lrange", (0, -1), {}),
    b"stream": ("xrange", (), {}),
}

# Times in ms since 1970 have 13 digits from 2001 to 2286, alone or as the first half of a stream entry id.
_TIME_MS = re.compile(rb"(\d{13})(?:-\d+)?")
TIME = b"<time>"


class Entry(NamedTuple):
    """A key: its type, its value (bytes, dict, frozenset or list by type), and whether it expires (None: not asked)."""

    kind: str
    value: object
    expires: bool | None


Snapshot = dict[bytes, Entry]
SyncClient = redis.Redis | redis.RedisCluster
AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster


@overload
def snapshot(client: SyncClient, *, match: str = ..., ttl: bool = ..., ignore_times: bool = ...) -> Snapshot: ...
@overload
def snapshot(
    client: AsyncClient, *, match: str = ..., ttl: bool = ..., ignore_times: bool = ...
) -> Awaitable[Snapshot]: ...
def snapshot(
    client: SyncClient | AsyncClient, *, match: str = "*", ttl: bool = False, ignore_times: bool = False
) -> Snapshot | Awaitable[Snapshot]:
    """Dump every key that matches the glob `match`; await the result when the client is an asyncio one.

    `ttl` adds whether each key expires, never when. `ignore_times` puts `TIME` in the place of every number that is a
    time in ms (fences are): for comparing two runs. Within one run `differences(..., slack_ms=...)` says more.
    """
    steps = _steps(client, match, ttl, ignore_times)
    if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
        return _drive_async(steps)
    reply = None
    while True:
        try:
            reply = steps.send(reply)
        except StopIteration as done:
            result: Snapshot = done.value
            return result


async def _drive_async(steps: Generator[Any, Any, Snapshot]) -> Snapshot:
    reply = None
    while True:
        try:
            reply = await steps.send(reply)
        except StopIteration as done:
            result: Snapshot = done.value
            return result


def _steps(client: Any, match: str, ttl: bool, ignore_times: bool) -> Generator[Any, Any, Snapshot]:
    """Yield calls (or awaitables of them, by client) and be sent their replies."""
    keys = sorted((yield client.keys(match)), key=_as_bytes)
    if not keys:
        return {}
    pipeline = _pipeline(client)
    for key in keys:
        pipeline.type(key)
    kinds = [_as_bytes(kind) for kind in (yield pipeline.execute())]
    found = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind != b"none"]
    pipeline = _pipeline(client)
    for key, kind in found:
        method, args, options = _READERS[kind]
        getattr(pipeline, method)(key, *args, **options)
        pipeline.pttl(key)
    replies = yield pipeline.execute()
    dump = {}
    for (key, kind), reply, left_ms in zip(found, replies[::2], replies[1::2], strict=True):
        value = _normal(kind, reply)
        expires = left_ms >= 0 if ttl else None
        dump[_as_bytes(key)] = Entry(kind.decode(), _without_times(value) if ignore_times else value, expires)
    return dump


def _pipeline(client: Any) -> Any:
    clustered = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
    return client.pipeline() if clustered else client.pipeline(transaction=False)


def _as_bytes(value: Any) -> bytes:
    return value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)


def _normal(kind: bytes, value: Any) -> object:
    """One form for every client, protocol version and `decode_responses`."""
    if kind == b"hash":
        return {_as_bytes(name): _as_bytes(content) for name, content in value.items()}
    if kind == b"set":
        return frozenset(map(_as_bytes, value))
    if kind == b"zset":
        return {_as_bytes(member): float(score) for member, score in value}
    if kind == b"list":
        return [_as_bytes(item) for item in value]
    if kind == b"stream":
        return [(_as_bytes(entry), _normal(b"hash", dict(fields))) for entry, fields in value]
    return _as_bytes(value)


def _time_ms(value: object) -> int | None:
    """The time in ms that a value is, if it is one."""
    if isinstance(value, float) and value.is_integer():
        value = b"%d" % int(value)
    time = _TIME_MS.fullmatch(value) if isinstance(value, bytes) else None
    return int(time[1]) if time else None


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {_without_times(name): _without_times(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_times, value))
    if isinstance(value, frozenset):
        return frozenset(map(_without_times, value))
    return value if _time_ms(value) is None else TIME


def differences(before: object, after: object, *, slack_ms: int = 0, path: str = "") -> list[str]:
    """What differs between two snapshots, one line each; times up to `slack_ms` apart are equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = []
        for name in [*before, *(name for name in after if name not in before)]:
            label = f"{path} {name.decode(errors='replace') if isinstance(name, bytes) else name}".strip()
            if name not in after:
                lines.append(f"{label}: gone, was {before[name]!r}")
            elif name not in before:
                lines.append(f"{label}: new, {after[name]!r}")
            else:
                lines += differences(before[name], after[name], slack_ms=slack_ms, path=label)
        return lines
    if isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [line for a, b in pairs for line in differences(a, b, slack_ms=slack_ms, path=path)]
    old_ms, new_ms = _time_ms(before), _time_ms(after)
    if old_ms is not None and new_ms is not None and abs(old_ms - new_ms) <= slack_ms:
        return []
    return [] if before == after else [f"{path}: {before!r} -> {after!r}"]
