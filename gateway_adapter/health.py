"""`/healthz`: the process lives. `/readyz`: send it requests."""

from aiohttp import web

from coordinator import CoordinatorError
from gateway_adapter import context
from gateway_adapter.metrics import METRICS

DRAINING = web.AppKey("draining", list[bool])
"""Holds True once the replica is draining; a list, because an application's keys are frozen once it runs."""


async def healthz(_: web.Request) -> web.Response:
    """The process answers."""
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Red while draining. Not while the store is away: then a balancer would hide this replica's own clear answer, and
    all replicas would vanish at once."""
    draining = bool(request.app[DRAINING])
    coordinator = request.app[context.COORDINATOR]
    try:
        await coordinator.ping()
        store = "ok"
        policy = await coordinator.eviction_policy()
    except CoordinatorError:
        store, policy = "unavailable", ""
    request.app[METRICS].store_up.set(store == "ok")
    evicts = policy not in ("", "noeviction")
    body = {
        "status": "draining" if draining else "ready",
        "store": store,
        "replica": coordinator.settings.replica,
        "running": coordinator.running,
        "warnings": [f"the store may evict what it must not lose: maxmemory-policy is {policy}"] if evicts else [],
    }
    return web.json_response(body, status=503 if draining else 200)
