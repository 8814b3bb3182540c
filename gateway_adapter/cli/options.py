"""The options of all verbs, each defined once. `--lease-ttl` is also COORDINATOR_LEASE_TTL, where empty means unset."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coordinator import Daily, Settings
from gateway_adapter.affinity import PRESETS, ScopeCarrier
from gateway_adapter.auth import INLINE
from gateway_adapter.cli.values import (
    daily,
    duration,
    duration_text,
    header_name,
    scope_carrier,
    size,
    size_text,
    store_url,
    tenant_name,
    wire_id,
)
from gateway_adapter.settings import GatewaySettings

COORDINATOR = Settings(replica="defaults")
GATEWAY = GatewaySettings(coordinator=COORDINATOR)
LOCAL_STORE = "redis://127.0.0.1:6379/0"

_CLIENTS, _BEHIND, _TURNS, _LIMITS = "Clients", "Store and upstream", "Turns", "Limits"
_FLEET = "The same on all replicas"


def _flag(name: str, text: str, panel: str | None = None, **details: Any) -> Any:
    variable = "COORDINATOR_" + name.upper().replace("-", "_")
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel, envvar=variable, **details)


def _accepted(field: str) -> Callable[[Any], Any]:
    """Asks the coordinator's settings whether they take the value, so that a refusal names the flag."""

    def accepted(value: Any) -> Any:
        try:
            replace(COORDINATOR, **{field: value})
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return accepted


def _above_0(value: int) -> int:
    if value == 0:
        raise typer.BadParameter("it must be longer than 0")
    return value


def _duration(name: str, text: str, panel: str, default_ms: int, callback: Callable[[int], int] | None = None) -> Any:
    shown = duration_text(default_ms)
    return _flag(name, text, panel, parser=duration, metavar="DURATION", show_default=shown, callback=callback)


def _time(name: str, text: str, panel: str, field: str) -> Any:
    """A duration among the coordinator's settings."""
    return _duration(name, text, panel, getattr(COORDINATOR, field), _accepted(field))


def _count(name: str, text: str, panel: str) -> Any:
    return _flag(name, text, panel, metavar="N", min=0, max=1_000_000)


def _size(name: str, text: str, default_bytes: int) -> Any:
    return _flag(name, text, _LIMITS, parser=size, metavar="SIZE", show_default=size_text(default_bytes))


def _secret(variable: str) -> Any:
    """An option only in name: from the environment, because everybody on a machine can read its command lines."""

    def from_environment(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
        source = context.get_parameter_source(parameter.name)
        if value is not None and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"a command line is no place for a secret: set {variable}")
        return value

    name = variable.removeprefix("COORDINATOR_").lower().replace("_", "-")
    return _flag(name, "", hidden=True, callback=from_environment)


# Shared by all verbs that ask a store.

AskedStore = Annotated[
    str,
    _flag(
        "store",
        "The store that the replicas share. Not embedded://: that one lives inside its gateway, from here it is empty.",
        metavar="URL",
        parser=store_url,
    ),
]
TenantName = Annotated[str, typer.Option("--tenant", help="Whose.", metavar="NAME", parser=tenant_name)]
AnyTenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose; all tenants of the store by default.", metavar="NAME", parser=tenant_name),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session's id.", parser=wire_id)]
SessionOrTurn = Annotated[str, typer.Argument(metavar="ID", help="A session's id, or a turn's token.", parser=wire_id)]
OfSession = Annotated[str | None, typer.Argument(metavar="[ID]", help="The session's id.", parser=wire_id)]
TurnId = Annotated[str, typer.Argument(metavar="ID", help="The turn's token.", parser=wire_id)]
Reason = Annotated[
    Literal["session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired"],
    typer.Option("--reason", help="Why the generation ends."),
]
Horizon = Annotated[
    int | None,
    typer.Option("--horizon", help="How long idle; --session-ttl by default.", metavar="DURATION", parser=duration),
]

# What a verb needs to know of the replicas' settings when it settles what a dead one left behind, and `serve` itself.

LeaseTtl = Annotated[int, _time("lease-ttl", "How long a dead replica blocks a conversation.", _FLEET, "lease_ms")]
ResultTtl = Annotated[int, _time("result-ttl", "How long an answer can be replayed.", _FLEET, "result_ttl_ms")]
KeyTtl = Annotated[
    int, _time("key-ttl", "How long a used Idempotency-Key stays used; 0 for ever.", _FLEET, "key_ttl_ms")
]
SessionTtl = Annotated[int, _time("session-ttl", "How long an idle session is kept.", _FLEET, "session_ttl_ms")]

# Only for `serve`.

ResponseTtl = Annotated[int, _time("response-ttl", "How long a stored response is kept.", _FLEET, "response_ttl_ms")]

Host = Annotated[str, _flag("host", "Address to listen at; without keys a loopback one.", _CLIENTS)]
Port = Annotated[int, _flag("port", "Port to listen at.", _CLIENTS, metavar="N", min=1, max=65_535)]
KeysFile = Annotated[
    Path | None,
    _flag("keys", "TOML file of the tenants' API keys; see `keys new`.", _CLIENTS, metavar="FILE", show_default=False),
]
ApiKeysInline = Annotated[str | None, _secret(INLINE)]
MaxBody = Annotated[int, _size("max-body", "The largest request body.", GATEWAY.max_body_bytes)]
Store = Annotated[
    str,
    _flag(
        "store",
        "The store that all replicas share: redis://, rediss:// or unix://. The default forgets with the process.",
        _BEHIND,
        metavar="URL",
        parser=store_url,
    ),
]
Upstream = Annotated[
    str | None,
    _flag(
        "upstream", "OpenAI-compatible base ending in /v1; without it, the built-in echo model.", _BEHIND, metavar="URL"
    ),
]
UpstreamApiKey = Annotated[str | None, _secret("COORDINATOR_UPSTREAM_API_KEY")]
UpstreamTimeout = Annotated[
    int,
    _duration(
        "upstream-timeout", "The longest silence within an answer.", _BEHIND, GATEWAY.upstream_timeout_ms, _above_0
    ),
]
TurnPolicy = Annotated[
    Literal["wait", "reject", "interrupt"],
    _flag("turn-policy", "What a request does that finds its conversation busy.", _TURNS),
]
TurnWait = Annotated[
    int, _time("turn-wait", "The longest that a request waits for its conversation.", _TURNS, "turn_wait_ms")
]
TurnLimit = Annotated[int, _time("turn-limit", "The longest that a turn may run.", _TURNS, "turn_limit_ms")]
QueueLimit = Annotated[int, _count("queue-limit", "Requests that may wait for one conversation.", _TURNS)]
InterruptedTurns = Annotated[
    Literal["refuse", "rerun"],
    _flag("interrupted-turns", "What a keyed retry gets whose first try died with its replica.", _TURNS),
]
ImplicitTurns = Annotated[
    Literal["shared", "exclusive"],
    _flag("implicit-turns", "Whether turns of header-less conversations run side by side.", _FLEET),
]
NewLeaseTtl = Annotated[
    int | None,
    typer.Option("--lease-ttl", help="Agree on this lease.", metavar="DURATION", parser=duration),
]
NewImplicitTurns = Annotated[
    Literal["shared", "exclusive"] | None,
    typer.Option("--implicit-turns", help="Agree on how turns of header-less conversations run."),
]
OnDisconnect = Annotated[
    Literal["auto", "finish", "cancel"],
    _flag("on-disconnect", "What becomes of a turn whose client is gone; auto finishes keyed ones.", _CLIENTS),
]
DrainTimeout = Annotated[
    int,
    _duration("drain-timeout", "How long running turns may take after SIGTERM.", _TURNS, GATEWAY.drain_timeout_ms),
]
Transcripts = Annotated[
    Literal["managed", "all"],
    _flag("transcripts", "Whose history the store keeps: sessions opened by id, or all.", _FLEET),
]
Source = Annotated[
    str,
    _flag("source", "The source of the conversations that requests open.", _FLEET, callback=_accepted("source")),
]
Idle = Annotated[
    int, _time("idle", "Rest after which a declared conversation begins anew; 0 for never.", _FLEET, "idle_ms")
]
DailyAt = Annotated[
    Daily | None,
    _flag(
        "daily",
        "Time of day at which resting declared conversations begin anew, like 04:00@Europe/Berlin.",
        _FLEET,
        metavar="HH:MM@ZONE",
        parser=daily,
        show_default="never",
    ),
]
Durability = Annotated[
    Literal["primary", "replicated", "fsynced"],
    _flag("durability", "When an answer is safe: at the primary, at replicas too, or on disk.", _BEHIND),
]
DurabilityReplicas = Annotated[
    int | None,
    _flag(
        "durability-replicas",
        "Replicas that must have it; by default 1 for replicated, 0 for fsynced.",
        _BEHIND,
        metavar="N",
        min=0,
        max=100,
        show_default=False,
    ),
]
DurabilityTimeout = Annotated[
    int,
    _duration("durability-timeout", "How long to wait for that.", _BEHIND, COORDINATOR.durability_timeout_ms, _above_0),
]
ScopeAs = Annotated[
    ScopeCarrier,
    _flag(
        "scope-as",
        f"How upstream requests carry the session's affinity scope: {', '.join(PRESETS)}, body:NAME, header:NAME.",
        _BEHIND,
        metavar="NAMES",
        parser=scope_carrier,
        show_default="openai",
    ),
]
ScopeImplicit = Annotated[bool, _flag("scope-implicit", "Carry it for header-less conversations too.", _BEHIND)]
FenceHeader = Annotated[
    str | None,
    _flag(
        "fence-header",
        "Header under which upstream requests carry the turn's fence.",
        _BEHIND,
        metavar="NAME",
        parser=header_name,
    ),
]
MaxRunning = Annotated[int, _count("max-running", "Running turns a tenant may have; 0 for any number.", _LIMITS)]
MaxStored = Annotated[int, _size("max-stored", "The largest answer kept for replay.", COORDINATOR.max_stored_bytes)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], _flag("log-level", "The least that is logged, to stderr.")
]
