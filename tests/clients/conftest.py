"""The official client in front of a replica in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from tests.adapter.conftest import gateway, http, own_server, start, start_own
from tests.adapter.gateway import Gateway

__all__ = ["gateway", "http", "own_server", "start", "start_own"]  # fixtures, found here by their names


class Client(openai.AsyncOpenAI):
    """The client as it comes, and how many HTTP requests it `sent` and how many were `answered`."""

    def __init__(self, url: str, **options: Any) -> None:
        self.sent = self.answered = 0

        async def count_request(_: object) -> None:
            self.sent += 1

        async def count_response(_: object) -> None:
            self.answered += 1

        counting = openai.DefaultAsyncHttpxClient(
            event_hooks={"request": [count_request], "response": [count_response]}
        )
        super().__init__(base_url=f"{url}/v1", http_client=counting, **{"api_key": "one", **options})


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Client]]:
    """`connect(gateway, timeout=1)`: a client of that replica, with the client's own defaults otherwise."""
    async with AsyncExitStack() as stack:

        def connect_one(gateway: Gateway, **options: Any) -> Client:
            client = Client(gateway.url, **options)
            stack.push_async_callback(client.close)
            return client

        yield connect_one


@pytest.fixture
def client(connect: Callable[..., Client], gateway: Gateway) -> Client:
    """A client of a replica with the default settings."""
    return connect(gateway)
