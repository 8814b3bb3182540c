"""What a store says about itself."""

from dataclasses import dataclass

from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class ScriptStats:
    """Calls of scripts since the server started, and the microseconds they took in all."""

    calls: int
    micros: int


async def script_stats(client: Redis) -> ScriptStats:
    """The server's own count; the first calls of a script, which load it, are counted too."""
    stats = await client.info("commandstats")
    found = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
    return ScriptStats(sum(one["calls"] for one in found), sum(one["usec"] for one in found))


async def used_memory(client: Redis) -> int:
    """Bytes that the server's allocator has handed out, its own overhead included."""
    return int((await client.info("memory"))["used_memory"])
