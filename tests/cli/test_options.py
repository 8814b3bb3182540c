"""The options of `serve`: their names, defaults and values, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coordinator import Daily
from gateway_adapter.affinity import ScopeCarrier
from gateway_adapter.settings import GatewaySettings
from tests.cli.conftest import Run, start

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
    "response-ttl": ("coordinator.response_ttl_ms", 2_592_000_000, "60d", 5_184_000_000),
    "max-running": ("coordinator.max_running", 0, "7", 7),
    "max-stored": ("coordinator.max_stored_bytes", 4_194_304, "1MiB", 1_048_576),
}


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
