"""The official JavaScript client, over two replicas that it knows as one address."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.balancer import RoundRobinBalancer

HERE = Path(__file__).parent / "js"
NODE, NPM = shutil.which("node"), shutil.which("npm")

SCENARIOS = {
    "chat": "H1, F1: JSON, a stream, and its replay.",
    "create": "I1: what one replica made is read, listed and deleted at the other.",
    "stream": "I1, H1: typed events in order, and the client's own accumulation of them.",
    "chain": "I2: from the newest on, from an older one a branch, from garbage a 404.",
    "background": "I1, I4, G7: polled to its end, and cancelled, at replicas in turn.",
    "resume": "H2: left in the middle and resumed with `starting_after` at the other replica.",
    "tools": "I1: function calls out, their outputs in.",
    "conversations": "I1: created, used, read by pages, changed and deleted.",
}


@pytest.fixture(scope="session")
def client_folder() -> Path:
    """The folder with the client: installed once for each version of the lock file, outside the tree."""
    if NODE is None or NPM is None:
        pytest.skip("node and npm are not installed")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "session-coordinator"
    folder = caches / f"js-{hashlib.sha256((HERE / 'package-lock.json').read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, made)
            command = [NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            if not folder.exists():
                made.rename(folder)
    return folder


@pytest.mark.timeout(140)  # the first test of all waits for the installation
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_client_as_it_comes(client_folder, start, upstream, scenario):
    """I1, I2, I4, H1, H2: as `SCENARIOS` says; each request at the replica after the one before."""
    gateways = [await start(lease_ms=3_000), await start(lease_ms=3_000)]
    async with RoundRobinBalancer([gateway.url for gateway in gateways]) as balancer:
        command = [NODE or "", HERE / "scenarios.mjs", client_folder, f"{balancer.url}/v1", scenario]
        running = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(running.communicate(), 15)
        assert running.returncode == 0, said.decode()
        assert len(balancer.served) == 2
