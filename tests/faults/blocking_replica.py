"""A replica whose turns hold up its process: started by path, as a command in place of `serve`'s own.

Once the upstream has answered, a model named `sleep:<s>` blocks the event loop with `time.sleep`, and `regex:<s>` holds
the interpreter lock in one regular expression, for at least that long.
"""

import re
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import gateway_adapter.app
from gateway_adapter import json_text
from gateway_adapter.cli import main
from gateway_adapter.executors.base import Answer
from gateway_adapter.executors.upstream import UpstreamExecutor


class BlockingExecutor(UpstreamExecutor):
    """Calls the upstream, then holds everything up."""

    @asynccontextmanager
    async def chat(self, body: bytes, *, stream: bool, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """As the model's name says."""
        request = json_text.loads(body)
        kind, _, seconds = str(request["model"] if isinstance(request, dict) else "").partition(":")
        async with super().chat(body, stream=stream, headers=headers) as answer:
            if kind == "sleep":
                time.sleep(float(seconds))
            elif kind == "regex":
                hold_the_lock(float(seconds))
            yield answer


def hold_the_lock(seconds: float) -> None:
    """One call that takes at least so long without letting any other thread run."""
    letters, took = 16, 0.0
    while took < seconds:
        letters += 1 if took > seconds / 3 else 2
        began = time.monotonic()
        re.fullmatch("(a+)+", "a" * letters + "b")
        took = time.monotonic() - began


vars(gateway_adapter.app)["UpstreamExecutor"] = BlockingExecutor
if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
