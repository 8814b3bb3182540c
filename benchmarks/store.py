"""What a store says about itself."""

from dataclasses import dataclass

from redis.asyncio import Redis

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ScriptStats:
    """Calls of scripts since the server started, and the microseconds they took in all."""

    calls: int
    micros: int


async def script_stats(client: Redis) -> ScriptStats:
    """The server's own count; a script's time contains that of its commands."""
    stats = await client.info("commandstats")
    found = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
    return ScriptStats(sum(one["calls"] for one in found), sum(one["usec"] for one in found))


async def used_memory(client: Redis) -> int:
    """Bytes that the server's allocator has handed out, its own tables included."""
    return int((await client.info("memory"))["used_memory"])


async def keys_memory(client: Redis, pattern: str) -> tuple[int, int]:
    """Bytes that the keys of this pattern take, names included, and how many they are."""
    total = count = cursor = 0
    while True:
        cursor, keys = await client.scan(cursor, match=pattern, count=_PAGE)
        async with client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.memory_usage(key, samples=0)
            sizes = await pipeline.execute()
        total, count = total + sum(sizes), count + len(keys)
        if not cursor:
            return total, count
