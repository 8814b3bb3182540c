"""The deployment that ships with the project: the compose file, the balancer's configuration, the image."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
REPLICAS = ("gateway-1", "gateway-2", "gateway-3")
UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}

# What the compose specification says of the parts used here. Closed, so that a misspelt field is found.
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}
STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image"],
    "properties": {
        "image": {"type": "string"},
        "build": {"type": "string"},
        "command": STRINGS,
        "environment": {
            "type": "object",
            "patternProperties": {"^[A-Z][A-Z0-9_]*$": {"type": ["string", "null"]}},
            "additionalProperties": False,
        },
        "ports": {**STRINGS, "items": {"type": "string", "pattern": r"^[^/]+:\d+$"}},
        "volumes": {**STRINGS, "items": {"type": "string", "pattern": r"^[^:]+:/[^:]+(:ro)?$"}},
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "additionalProperties": False,
                "properties": {"condition": {"enum": ["service_started", "service_healthy"]}},
            },
        },
        "healthcheck": {
            "type": "object",
            "required": ["test"],
            "additionalProperties": False,
            "properties": {
                "test": {**STRINGS, "contains": {"enum": ["CMD", "CMD-SHELL"]}},
                "interval": DURATION,
                "timeout": DURATION,
                "start_period": DURATION,
                "retries": {"type": "integer"},
            },
        },
        "stop_grace_period": DURATION,
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "read_only": {"type": "boolean"},
        "cap_drop": STRINGS,
        "security_opt": STRINGS,
    },
}
COMPOSE = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    },
}


def interpolate(text: str, environment: dict[str, str]) -> str:
    """`${NAME:-default}` as compose fills it in."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], text)


def seconds(duration: str) -> float:
    """Seconds of `500ms`, `20s`, `1h`."""
    amount, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", duration).groups()  # type: ignore[union-attr]
    return int(amount) * UNITS_S[unit]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as compose reads it in an empty environment."""
    return yaml.safe_load(interpolate((ROOT / "docker-compose.yml").read_text("utf-8"), {}))


@pytest.fixture(scope="module")
def services(compose) -> dict[str, Any]:
    """Its services by name."""
    return compose["services"]


@pytest.fixture(scope="module")
def balancer() -> list[list[str]]:
    """The balancer's directives in order, each split into words, without comments and braces."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", (ROOT / "deploy/nginx.conf").read_text("utf-8"))
    words = re.findall(r"'[^']*'|\"[^\"]*\"|[;{}]|[^\s;{}]+", text)
    found: list[list[str]] = [[]]
    for word in words:
        if word in ";{}":
            found.append([])
        else:
            found[-1].append(word)
    return [directive for directive in found if directive]


def test_the_file_is_a_compose_file(compose) -> None:
    """K2: what is deployed is described in a form that compose accepts, without a misspelt field."""
    jsonschema.validate(compose, COMPOSE)
    for name, service in compose["services"].items():
        unknown = set(service.get("depends_on", {})) - set(compose["services"])
        assert not unknown, f"{name} waits for services that do not exist"


def test_the_store_keeps_what_was_answered(services) -> None:
    """J5, J7: the append-only file is on, on a volume, and a full store refuses instead of forgetting."""
    command = services["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "everysec"
    assert options["--maxmemory-policy"] == "noeviction"
    assert "--maxmemory" in options, "without a limit the policy never comes into force"
    assert "redis-data:/data" in services["redis"]["volumes"]
    assert "healthcheck" in services["redis"]


def test_the_replicas_are_alike(services) -> None:
    """G1: three replicas that differ in nothing but their names share one store."""
    assert [name for name in services if name.startswith("gateway")] == list(REPLICAS)
    first = services["gateway-1"]
    assert all(services[name] == first for name in REPLICAS)
    assert first["environment"]["COORDINATOR_STORE"] == "redis://redis:6379/0"
    assert first["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_a_replica_may_bind_its_address(services) -> None:
    """J9: a host that is not loopback needs keys, and the deployment brings some that a person can replace."""
    environment = services["gateway-1"]["environment"]
    assert environment["COORDINATOR_HOST"] == "0.0.0.0"  # noqa: S104  # the container's own address
    assert environment["COORDINATOR_API_KEYS"] == "demo:local-demo-key"
    own = interpolate((ROOT / "docker-compose.yml").read_text("utf-8"), {"COORDINATOR_API_KEYS": "acme:secret"})
    assert yaml.safe_load(own)["services"]["gateway-3"]["environment"]["COORDINATOR_API_KEYS"] == "acme:secret"


def test_the_upstream_is_handed_through(services) -> None:
    """D4: an upstream set outside reaches every replica; unset it stays unset, which is the echo model."""
    environment = services["gateway-1"]["environment"]
    assert {"COORDINATOR_UPSTREAM", "COORDINATOR_UPSTREAM_API_KEY"} <= environment.keys()
    assert environment["COORDINATOR_UPSTREAM"] is None


def test_a_replica_is_given_the_time_to_drain(services) -> None:
    """J6: running turns may finish, and the rest be released, before the replica is killed."""
    replica = services["gateway-1"]
    drain_s = seconds(replica["environment"]["COORDINATOR_DRAIN_TIMEOUT"])
    assert seconds(replica["stop_grace_period"]) >= drain_s + 5
    assert seconds(services["balancer"]["stop_grace_period"]) >= drain_s


def test_only_the_balancer_is_reachable(services) -> None:
    """J9: neither the store nor a replica is published; the balancer is, on this machine, at 8080."""
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"balancer": ["127.0.0.1:8080:8080"]}
    assert services["balancer"]["volumes"] == ["./deploy/nginx.conf:/etc/nginx/nginx.conf:ro"]
    assert set(services["balancer"]["depends_on"]) == set(REPLICAS)


def test_the_balancer_sticks_to_nobody(balancer) -> None:
    """G1: any request may reach any replica, in turn, whoever sent it."""
    servers = [directive for directive in balancer if directive[0] == "server" and len(directive) > 1]
    assert [directive[1] for directive in servers] == [f"{name}:8080" for name in REPLICAS]
    assert all(directive[2:] == servers[0][2:] for directive in servers), "no replica is preferred"
    names = {directive[0] for directive in balancer}
    assert not names & {"ip_hash", "hash", "sticky", "least_conn", "least_time", "random"}


def test_the_balancer_never_sends_a_request_twice(balancer) -> None:
    """F5: a request whose replica died is not run by another one behind the client's back."""
    assert ["proxy_next_upstream", "off"] in balancer
    assert [name for name, *_ in balancer].count("proxy_next_upstream") == 1


def test_the_balancer_holds_nothing_back(balancer) -> None:
    """H1: events reach the client as they come, over a connection that may be silent for as long as a turn."""
    settings = {directive[0]: directive[1:] for directive in balancer}
    assert settings["proxy_buffering"] == ["off"]
    assert settings["proxy_http_version"] == ["1.1"]
    assert seconds(settings["proxy_read_timeout"][0]) >= seconds("1h")
    assert ["proxy_set_header", "Connection", '""'] in balancer
    assert "keepalive" in settings


def test_the_balancer_leaves_addresses_and_bodies_to_the_replicas(balancer) -> None:
    """B3, J9: ids arrive as written, and a body that is too large for a replica is refused by the replica."""
    settings = {directive[0]: directive[1:] for directive in balancer}
    assert re.fullmatch(r"http://\w+", settings["proxy_pass"][0]), "a path here would decode and merge the client's"
    assert int(settings["client_max_body_size"][0].removesuffix("m")) > 10


def test_the_balancer_refuses_in_the_common_form(balancer) -> None:
    """J8: what the balancer itself has to refuse is the OpenAI error envelope too."""
    bodies = [json.loads(directive[2].strip("'")) for directive in balancer if directive[0] == "return"]
    assert {body["error"]["code"] for body in bodies} == {"body_too_large", "replica_unreachable"}
    assert all(set(body["error"]) == {"message", "type", "param", "code"} for body in bodies)


def test_the_image_runs_as_nobody_in_particular() -> None:
    """J8: the process in the image has a fixed uid that is not root's, a health check and the command as entry."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    image = [line.split(maxsplit=1) for line in lines if re.match(r"[A-Z]+ ", line)]
    final = image[max(i for i, (word, _) in enumerate(image) if word == "FROM") :]
    instructions = dict(reversed(final))
    assert re.fullmatch(r"([1-9]\d*):([1-9]\d*)", instructions["USER"])
    assert instructions["EXPOSE"] == "8080"
    assert "/healthz" in instructions["HEALTHCHECK"]
    assert json.loads(instructions["ENTRYPOINT"]) == ["session-coordinator"]
    assert json.loads(instructions["CMD"])[0] == "serve"
