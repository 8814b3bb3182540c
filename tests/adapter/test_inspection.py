"""K2: what a replica tells of itself over HTTP: metrics, readiness, and what there is to call."""

import pytest


async def test_metrics_count_what_was_answered(gateway):
    """K2: requests are counted by route, status and code; replays apart; no id and no tenant is in a label."""
    for _ in range(2):
        assert (await gateway.chat("hello", session_id="s-secret", key="k")).status == 200
    assert (await gateway.request("GET", "/api/sessions/nobody")).status == 404
    text = (await gateway.request("GET", "/metrics")).body.decode()
    chat = 'method="POST",route="/v1/chat/completions",status="200"'
    assert f'gateway_requests_total{{code="",{chat}}} 2.0' in text
    assert 'code="not_found",method="GET"' in text
    assert 'gateway_replays_total{route="/v1/chat/completions"} 1.0' in text
    assert "gateway_turns_running 0.0" in text
    assert "s-secret" not in text


async def test_the_description_lists_every_route(gateway):
    """K2: `/openapi.json` has each route of the router, with a summary, and is the same as the application's."""
    told = (await gateway.request("GET", "/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/responses/{id}", "/v1/runs/{id}/events", "/api/sessions/{id}/reset"} <= set(
        told["paths"]
    )
    operations = [operation for path in told["paths"].values() for operation in path.values()]
    assert all(operation["summary"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("policy", "warned"), [("noeviction", False), ("allkeys-lru", True)])
async def test_readiness_tells_of_eviction(gateway, store_server, policy, warned):
    """J7: a server that may evict what must not be lost is told of in readiness, which stays green."""
    store_server.cli("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        reply = await gateway.request("GET", "/readyz")
    finally:
        store_server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert reply.status == 200
    assert bool(reply.json()["warnings"]) == warned
