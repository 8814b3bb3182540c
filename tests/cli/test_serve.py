"""`serve`: what its options mean, what it refuses to start with, and how it says so."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from coordinator import Daily
from gateway_adapter.affinity import ScopeCarrier
from gateway_adapter.settings import GatewaySettings
from tests.cli.conftest import COMMAND, Run, start
from tests.support.process import LOCALHOST
from tests.support.replicas import Replica
from tests.support.servers import StoreServer

# Flag: its default, another value, and what each is in the settings, by the settings' name.
FLAGS: dict[str, tuple[str, object, str, object]] = {
    "host": ("host", "127.0.0.1", "::1", "::1"),
    "port": ("port", 8080, "9000", 9000),
    "store": ("store", "embedded://", "redis://localhost/1", "redis://localhost/1"),
    "upstream": ("upstream", None, "https://models.test/v1", "https://models.test/v1"),
    "upstream-timeout": ("upstream_timeout_ms", 300_000, "90s", 90_000),
    "on-disconnect": ("on_disconnect", "auto", "finish", "finish"),
    "drain-timeout": ("drain_timeout_ms", 20_000, "0", 0),
    "max-body": ("max_body_bytes", 10_000_000, "512KB", 512_000),
    "scope-as": ("scope_as", ScopeCarrier.parse("openai"), "xai", ScopeCarrier.parse("xai")),
    "scope-implicit": ("scope_implicit", False, "true", True),
    "fence-header": ("fence_header", None, "X-Fence", "X-Fence"),
    "idle": ("coordinator.idle_ms", 0, "6h", 21_600_000),
    "daily": ("coordinator.daily", None, "04:00@Europe/Berlin", Daily.parse("04:00@Europe/Berlin")),
    "lease-ttl": ("coordinator.lease_ms", 30_000, "500ms", 500),
    "turn-policy": ("coordinator.turn_policy", "wait", "interrupt", "interrupt"),
    "turn-wait": ("coordinator.turn_wait_ms", 45_000, "1s", 1_000),
    "turn-limit": ("coordinator.turn_limit_ms", 1_800_000, "2h", 7_200_000),
    "queue-limit": ("coordinator.queue_limit", 32, "0", 0),
    "interrupted-turns": ("coordinator.interrupted_turns", "refuse", "rerun", "rerun"),
    "implicit-turns": ("coordinator.implicit_turns", "shared", "exclusive", "exclusive"),
    "transcripts": ("coordinator.transcripts", "managed", "all", "all"),
    "source": ("coordinator.source", "api_server", "telegram", "telegram"),
    "result-ttl": ("coordinator.result_ttl_ms", 86_400_000, "1h", 3_600_000),
    "key-ttl": ("coordinator.key_ttl_ms", 604_800_000, "0", 0),
    "session-ttl": ("coordinator.session_ttl_ms", 2_592_000_000, "1d", 86_400_000),
    "max-running": ("coordinator.max_running", 0, "7", 7),
    "max-stored": ("coordinator.max_stored_bytes", 4_194_304, "1MiB", 1_048_576),
}
KEY = "sk-a-key-that-must-never-be-printed"
DIGEST = f"sha256:{sha256(KEY.encode()).hexdigest()}"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """The settings that `serve` would have served with; nothing is bound, logging stays the tests'."""
    found: list[GatewaySettings] = []

    async def serve(settings: GatewaySettings) -> None:
        found.append(settings)

    monkeypatch.setattr("gateway_adapter.app.serve", serve)
    monkeypatch.setattr("gateway_adapter.cli.logs.set_up", lambda level: None)
    return found


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server((LOCALHOST, 0)) as other:
        yield other.getsockname()[1]


def values(settings: GatewaySettings) -> dict[str, Any]:
    """The settings that have a flag, by the flag's name."""
    return {
        flag: getattr(settings.coordinator if field.startswith("coordinator.") else settings, field.split(".")[-1])
        for flag, (field, *_) in FLAGS.items()
    }


def test_the_defaults_are_those_of_the_contract(run: Run, served: list[GatewaySettings]) -> None:
    """K2: without a flag, each setting is what is documented, and what the settings themselves say."""
    assert run("serve").code == 0
    assert values(served[0]) == {flag: default for flag, (_, default, *_) in FLAGS.items()}
    assert values(GatewaySettings()) == values(served[0])
    assert served[0].keys.open


def test_every_flag_arrives(run: Run, served: list[GatewaySettings]) -> None:
    """K2: each flag sets its setting."""
    words = [word for flag, (_, _, text, _) in FLAGS.items() for word in (f"--{flag}", text) if word != "true"]
    assert run("serve", *words).code == 0
    assert values(served[0]) == {flag: value for flag, (*_, value) in FLAGS.items()}


def test_every_flag_is_a_variable(run: Run, served: list[GatewaySettings]) -> None:
    """K2: COORDINATOR_<NAME> says what the flag would, and the flag wins."""
    variables = {variable(flag): text for flag, (_, _, text, _) in FLAGS.items()}
    assert run("serve", "--port", "9001", **variables).code == 0
    assert values(served[0]) == {flag: value for flag, (*_, value) in FLAGS.items()} | {"port": 9001}


def test_an_empty_variable_is_unset(run: Run, served: list[GatewaySettings]) -> None:
    """K2: what a deployment passes on without a value changes nothing."""
    empty = dict.fromkeys([*map(variable, FLAGS), *map(variable, ("keys", "api-keys", "upstream-api-key"))], "")
    assert run("serve", **empty).code == 0
    assert values(served[0]) == {flag: default for flag, (_, default, *_) in FLAGS.items()}
    assert served[0].keys.open
    assert served[0].upstream_api_key is None


def variable(flag: str) -> str:
    """The variable of a flag."""
    return "COORDINATOR_" + flag.upper().replace("-", "_")


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("lease-ttl", "soon", "'soon' is not a duration"),
        ("lease-ttl", "499ms", "at least 500"),
        ("turn-limit", "0", "greater than 0"),
        ("result-ttl", "0s", "greater than 0"),
        ("upstream-timeout", "0", "longer than 0"),
        ("key-ttl", "99999999d", "at most 36500d"),
        ("session-ttl", "-1s", "not a duration"),
        ("max-body", "plenty", "'plenty' is not a size"),
        ("max-stored", "-1", "not a size"),
        ("queue-limit", "-1", "greater than or equal to 0"),
        ("max-running", "many", "valid integer"),
        ("port", "65536", "less than or equal to 65535"),
        ("port", "0", "greater than or equal to 1"),
        ("turn-policy", "hurry", "'hurry' is not one of 'wait', 'reject', 'interrupt'"),
        ("daily", "4 o'clock", "not a time of day"),
        ("scope-as", "body:model", "is none of"),
        ("fence-header", "a b", "not a name for a header"),
        ("implicit-turns", "none", "not one of"),
        ("source", "", "1 to 256 characters"),
        ("host", "", "must not be empty"),
        ("store", "mysql://db", "the scheme must be one of"),
        ("store", "redis://", "the host is missing"),
        ("store", "redis://h:port/0", "Port"),
        ("upstream", "localhost:11434/v1", "http or https"),
        ("upstream", "http:///v1", "http or https"),
        ("upstream", "http://h:port/v1", "port"),
    ],
)
def test_a_wrong_value_is_named_by_its_flag(
    run: Run, served: list[GatewaySettings], flag: str, value: str, says: str
) -> None:
    """K2: one line, which names the flag and what is wrong with its value, and exit code 2."""
    ran = run("serve", f"--{flag}", value)
    assert ran.code == 2
    assert f"--{flag}" in ran.complaint
    assert says in ran.complaint
    assert not served
    if value:
        assert run("serve", **{variable(flag): value}).code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.test"])  # noqa: S104  # refused
def test_without_keys_only_a_loopback_address_is_bound(run: Run, served: list[GatewaySettings], host: str) -> None:
    """J9: whoever can reach another host would be served as the default tenant; so it takes keys."""
    refused = run("serve", "--host", host)
    assert refused.code == 2
    assert "--host" in refused.complaint
    assert "COORDINATOR_API_KEYS" in refused.complaint
    assert not served
    assert run("serve", "--host", host, COORDINATOR_API_KEYS=f"acme:{KEY}").code == 0
    assert served[0].host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_address_needs_no_keys(run: Run, served: list[GatewaySettings], host: str) -> None:
    """J9: on one's own machine it starts without any preparation."""
    assert run("serve", "--host", host).code == 0
    assert served[0].keys.tenant_of(None) == "default"


def test_keys_come_from_a_file_and_from_the_environment(
    run: Run, served: list[GatewaySettings], tmp_path: Path
) -> None:
    """J9: both name tenants, together or each for itself."""
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{DIGEST}"]\n')
    assert run("serve", "--keys", str(path), COORDINATOR_API_KEYS="beta:sk-beta").code == 0
    assert served[0].keys.tenants == ["acme", "beta"]
    assert served[0].keys.tenant_of(f"Bearer {KEY}") == "acme"
    assert served[0].keys.tenant_of("Bearer sk-beta") == "beta"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'[tenants.acme]\nkeys = ["{DIGEST}", "{KEY}"]\n', "line 2"),
        ("[tenants.acme]\nkeys = [\n", "line 2"),
        ("# nothing\n", "no key"),
        (None, "No such file"),
    ],
)
def test_a_mistake_in_the_keys_file_is_shown(
    run: Run, served: list[GatewaySettings], tmp_path: Path, text: str | None, says: str
) -> None:
    """J8: the file and the line, never a key."""
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text)
    ran = run("serve", "--keys", str(path))
    assert ran.code == 2
    assert str(path) in ran.complaint
    assert says in ran.complaint
    assert KEY not in ran.complaint
    assert not served


def test_a_mistake_in_the_variable_is_shown(run: Run, served: list[GatewaySettings]) -> None:
    """J8: which entry, never a key."""
    ran = run("serve", COORDINATOR_API_KEYS=f"acme:sk-1,{KEY}")
    assert ran.code == 2
    assert "COORDINATOR_API_KEYS, entry 2" in ran.complaint
    assert KEY not in ran.complaint
    assert not served


@pytest.mark.parametrize("flag", ["--api-keys", "--upstream-api-key"])
def test_secrets_are_not_taken_from_a_command_line(run: Run, served: list[GatewaySettings], flag: str) -> None:
    """J8: everybody on the machine could read them there."""
    ran = run("serve", flag, f"acme:{KEY}")
    assert ran.code == 2
    assert f"set COORDINATOR_{flag[2:].upper().replace('-', '_')}" in ran.complaint
    assert KEY not in ran.complaint
    assert not served


def test_the_upstream_key_comes_from_the_environment(run: Run, served: list[GatewaySettings]) -> None:
    """J8: it reaches the settings, and two credentials for one upstream are a mistake."""
    assert run("serve", "--upstream", "http://h/v1", COORDINATOR_UPSTREAM_API_KEY=KEY).code == 0
    assert served[0].upstream_api_key == KEY
    ran = run("serve", "--upstream", f"http://u:{KEY}-2@h/v1", COORDINATOR_UPSTREAM_API_KEY=KEY)
    assert ran.code == 2
    assert "not both" in ran.complaint
    assert KEY not in ran.complaint


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{KEY}@h/0",
        f"redis://:{KEY}@h:x/0",
        f"redis://:{KEY}/@h/0",
        f"redis://?password={KEY}",
        f"rediss://{KEY}@",
    ],
)
def test_a_wrong_store_url_shows_no_password(run: Run, served: list[GatewaySettings], url: str) -> None:
    """J8: what is wrong with it is told without what is secret in it."""
    ran = run("serve", "--store", url)
    assert ran.code == 2
    assert "--store" in ran.complaint
    assert KEY not in ran.complaint


def test_a_port_in_use_is_one_clear_line(taken_port: int) -> None:
    """K2: exit code 1, and the last line says which address cannot be had."""
    ran = start("serve", "--port", str(taken_port))
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert last == f"session-coordinator: cannot listen on http://127.0.0.1:{taken_port}: Address already in use"
    assert "Traceback" not in ran.err


def test_a_replica_says_what_it_serves_where() -> None:
    """J8, K2: lines of JSON for machines, with the address, the store and the upstream without secrets, the tenants."""
    keys = {"COORDINATOR_API_KEYS": f"beta:{KEY},acme:{KEY}2", "COORDINATOR_UPSTREAM_API_KEY": f"{KEY}3"}
    with (
        StoreServer(password=f"{KEY}4") as store,
        Replica(store=store.url, upstream="http://127.0.0.1:9/v1", env=keys) as replica,
    ):
        assert replica.stop() == 0
        logged, url, port = replica.logs, replica.url, store.port
    assert KEY not in logged
    lines = [json.loads(line) for line in logged.splitlines()]
    assert all({"event", "level", "timestamp", "logger"} <= line.keys() for line in lines)
    told = lines[0]
    assert told["url"] == url
    assert told["store"] == f"redis://***@127.0.0.1:{port}/0"
    assert told["upstream"] == "http://127.0.0.1:9/v1"
    assert told["tenants"] == ["acme", "beta"]


def test_the_embedded_store_says_that_it_forgets() -> None:
    """J1: the default store is good for one process, and a warning says so."""
    with Replica() as replica:
        assert replica.stop() == 0
        warnings = [line for line in map(json.loads, replica.logs.splitlines()) if line["level"] == "warning"]
    assert len(warnings) == 1
    assert "forgets everything" in warnings[0]["event"]


def test_the_log_level_is_the_least_that_is_logged(taken_port: int) -> None:
    """K2: at `error` a start is silent, apart from why it failed."""
    assert len(start("serve", "--port", str(taken_port), "--log-level", "error").err.splitlines()) == 1


def test_on_a_terminal_the_log_is_for_people(taken_port: int) -> None:
    """K2: coloured text instead of JSON."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "serve", "--port", str(taken_port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        assert process.wait(10) == 1
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "starting" in shown
    assert f"http://127.0.0.1:{taken_port}" in shown
    assert not any(line.startswith("{") for line in shown.splitlines())


def test_a_traceback_shows_no_values(tmp_path: Path) -> None:
    """J8: an error of ours is logged with its traceback, without the variables of the frames."""
    script = tmp_path / "failing.py"
    script.write_text(
        "import logging, sys, structlog\n"
        "from gateway_adapter.cli import logs\n"
        "def fail(secret):\n"
        "    raise RuntimeError('it failed')\n"
        "logs.set_up('info')\n"
        "for log in (structlog.get_logger('ours'), logging.getLogger('theirs')):\n"
        "    try:\n"
        "        fail(sys.argv[1])\n"
        "    except RuntimeError:\n"
        "        log.exception('caught')\n"
    )
    command = [COMMAND[0], str(script), KEY]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root())}, capture_output=True, text=True, timeout=10, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["ours", "theirs"]
    assert all("RuntimeError: it failed" in line["exception"] for line in lines)
    assert KEY not in done.stderr


def root() -> Path:
    """The folder that holds the packages."""
    return Path(__file__).parents[2]


def test_the_help_names_every_flag_and_variable() -> None:
    """K2: whoever asks for help finds each option with its variable, and where the secrets go."""
    shown = start("serve", "--help", variables={"COLUMNS": "200"})
    assert shown.code == 0
    for flag in [*FLAGS, "keys", "log-level"]:
        assert f"--{flag} " in shown.out
        assert variable(flag) in shown.out
    assert "COORDINATOR_API_KEYS" in shown.out
    assert "COORDINATOR_UPSTREAM_API_KEY" in shown.out
    assert "--api-keys" not in shown.out


def test_fields_without_a_flag_are_known() -> None:
    """K2: a setting that is added gets a flag, or is named here."""
    fields = {field.name for field in dataclasses.fields(GatewaySettings)} - {"coordinator"}
    fields |= {f"coordinator.{field.name}" for field in dataclasses.fields(GatewaySettings().coordinator)}
    inner = (
        "replica",
        "record_ttl_ms",
        "unkeyed_ttl_ms",
        "refusal_ttl_ms",
        "patience_ms",
        "poll_ms",
        "vouch_ms",
        "commit_patience_ms",
    )
    without = {"keys", "upstream_api_key", "max_answer_bytes", *(f"coordinator.{name}" for name in inner)}
    assert fields == {field for field, *_ in FLAGS.values()} | without
