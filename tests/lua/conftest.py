"""Every script test runs on a real server, on a one-node cluster, and on the embedded store."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from coordinator.store import Store
from tests.lua.stage import Stage, stage_settings
from tests.support import STORES
from tests.support.servers import StoreServer


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store. A plain client connects to the cluster's node: keys of several slots are refused there."""
    if request.param == "embedded":
        return f"embedded://{uuid.uuid4().hex}"
    server: StoreServer = request.getfixturevalue("store_server" if request.param == "real" else "cluster_server")
    return server.url


@pytest.fixture
async def stage(store_url: str) -> AsyncIterator[Stage]:
    """Two replicas on an empty store."""
    async with Store(store_url, stage_settings("r1")) as store:
        client = store.listener()
        yield Stage(store, client)
        await client.aclose()
