"""`/metrics`: what this replica does, for Prometheus. Labels have few values: routes and codes, never ids."""

from time import monotonic

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 1800)  # from a replay to a turn at its limit


class Metrics:
    """The numbers of one application; two of them in a process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "gateway_requests",
            "Requests answered, by route, status and, for errors, the code told.",
            ["method", "route", "status", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gateway_request_seconds",
            "Time until a request was answered whole.",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._replays = Counter(
            "gateway_replays",
            "Requests answered with what an earlier one with their key was told.",
            ["route"],
            registry=self.registry,
        )
        self.running = Gauge("gateway_turns_running", "Turns running on this replica.", registry=self.registry)
        self.store_up = Gauge("gateway_store_up", "1 while the store answers, 0 while not.", registry=self.registry)
        self.draining = Gauge("gateway_draining", "1 once this replica is draining.", registry=self.registry)

    def count(self, request: web.Request, response: web.StreamResponse, started: float) -> None:
        """Takes in an answered request; `started` is `time.monotonic()` at its arrival."""
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        code = request.get(CODE, "")
        self._requests.labels(request.method, route, str(response.status), code).inc()
        self._seconds.labels(request.method, route).observe(monotonic() - started)
        if response.headers.get("Idempotency-Replayed"):
            self._replays.labels(route).inc()


METRICS = web.AppKey("metrics", Metrics)
CODE = web.RequestKey("code", str)
"""The error code that a request was told."""


async def get(request: web.Request) -> web.Response:
    """The numbers, in Prometheus's text form."""
    return web.Response(
        body=generate_latest(request.app[METRICS].registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
