"""The wheel, built, installed into an empty environment from the package index, and run from a folder of its own."""

import configparser
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.clients import chat
from tests.support.replicas import Replica

ROOT = Path(__file__).parents[2]

# Building takes 3 s and installing 20-30 s on two cores, and the first test that asks for it pays.
pytestmark = pytest.mark.timeout(120)


def run(*command: str | Path) -> None:
    """Run a command that must succeed; what it printed is in the error when it does not."""
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the tree as it is."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """An environment that holds the wheel and what it depends on, and nothing of the tree or of the test tools."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--no-compile", "--constraint", ROOT / "constraints.txt", wheel)
    return folder


@pytest.fixture
def replica(environment, monkeypatch) -> Iterator[Replica]:
    """`session-coordinator serve` of the installed wheel, with all defaults but the port."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # nothing may lead back to the tree
    with Replica(command=(str(environment / "bin/session-coordinator"), "serve")) as running:
        yield running


def test_the_wheel_holds_the_packages_and_the_scripts(wheel) -> None:
    """J3: what is installed is the product, whole: both packages with their types, and every script as it is here."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    wanted = {
        f"coordinator/lua/{path.relative_to(ROOT / 'lua').as_posix()}": path for path in (ROOT / "lua").rglob("*.lua")
    }
    for package in ("coordinator", "gateway_adapter"):
        sources = [*(ROOT / package).rglob("*.py"), ROOT / package / "py.typed"]
        wanted |= {path.relative_to(ROOT).as_posix(): path for path in sources}
    assert len(wanted) > 20
    assert not wanted.keys() - held.keys()
    assert all(held[name] == path.read_bytes() for name, path in wanted.items())
    others = {name.partition("/")[0] for name in held} - {"coordinator", "gateway_adapter"}
    assert [name.endswith(".dist-info") for name in others] == [True]


def test_the_wheel_says_what_it_is(wheel) -> None:
    """K2: its name, the Python it needs and its one command are the promised ones."""
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(f"{folder}/METADATA").decode()
        commands = configparser.ConfigParser()
        commands.read_string(archive.read(f"{folder}/entry_points.txt").decode())
    assert "\nName: session-coordinator\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert dict(commands["console_scripts"]) == {"session-coordinator": "gateway_adapter.cli:main"}


async def test_the_installed_command_serves(replica) -> None:
    """A2: one command of a fresh installation answers a chat completion and names its session, with nothing set up."""
    async with aiohttp.ClientSession() as session:
        reply = await chat(session, replica.url, "hello there", model="echo")
    assert reply.status == 200, replica.logs
    assert reply.text() == "hello there"
    assert reply.session_id
