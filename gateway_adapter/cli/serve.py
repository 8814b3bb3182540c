"""The verb `serve`: one replica of the gateway, until it is told to stop."""

import asyncio
import ipaddress
import os
from pathlib import Path

import structlog
import typer

from coordinator import NewerSchema, Settings
from gateway_adapter import app
from gateway_adapter.auth import INLINE, ApiKeys, KeysError
from gateway_adapter.cli import logs, options
from gateway_adapter.cli.options import COORDINATOR, GATEWAY
from gateway_adapter.cli.values import AskedWrongly, http_url, without_secrets
from gateway_adapter.executors.upstream import UpstreamExecutor
from gateway_adapter.settings import GatewaySettings

NOTES = """
Each option is also an environment variable, where empty means unset.

Secrets come from the environment alone: COORDINATOR_API_KEYS (tenant:key,tenant:key) for clients, besides or instead of
--keys, and COORDINATOR_UPSTREAM_API_KEY for the upstream.

Durations are written like 500ms, 30s, 5m, 24h, 7d; sizes in bytes or like 512KB, 10MB, 4MiB.
"""


def serve(
    host: options.Host = GATEWAY.host,
    port: options.Port = GATEWAY.port,
    keys: options.KeysFile = None,
    api_keys: options.ApiKeysInline = None,
    store: options.Store = GATEWAY.store,
    upstream: options.Upstream = GATEWAY.upstream,
    upstream_api_key: options.UpstreamApiKey = None,
    upstream_timeout: options.UpstreamTimeout = GATEWAY.upstream_timeout_ms,
    lease_ttl: options.LeaseTtl = COORDINATOR.lease_ms,
    turn_policy: options.TurnPolicy = "wait",
    turn_wait: options.TurnWait = COORDINATOR.turn_wait_ms,
    turn_limit: options.TurnLimit = COORDINATOR.turn_limit_ms,
    queue_limit: options.QueueLimit = COORDINATOR.queue_limit,
    interrupted_turns: options.InterruptedTurns = COORDINATOR.interrupted_turns,
    implicit_turns: options.ImplicitTurns = COORDINATOR.implicit_turns,
    on_disconnect: options.OnDisconnect = GATEWAY.on_disconnect,
    drain_timeout: options.DrainTimeout = GATEWAY.drain_timeout_ms,
    transcripts: options.Transcripts = COORDINATOR.transcripts,
    source: options.Source = COORDINATOR.source,
    idle: options.Idle = COORDINATOR.idle_ms,
    daily: options.DailyAt = None,
    durability: options.Durability = COORDINATOR.durability,
    durability_replicas: options.DurabilityReplicas = COORDINATOR.durability_replicas,
    durability_timeout: options.DurabilityTimeout = COORDINATOR.durability_timeout_ms,
    scope_as: options.ScopeAs = GATEWAY.scope_as,
    scope_implicit: options.ScopeImplicit = GATEWAY.scope_implicit,
    fence_header: options.FenceHeader = None,
    result_ttl: options.ResultTtl = COORDINATOR.result_ttl_ms,
    key_ttl: options.KeyTtl = COORDINATOR.key_ttl_ms,
    session_ttl: options.SessionTtl = COORDINATOR.session_ttl_ms,
    response_ttl: options.ResponseTtl = COORDINATOR.response_ttl_ms,
    max_running: options.MaxRunning = COORDINATOR.max_running,
    max_body: options.MaxBody = GATEWAY.max_body_bytes,
    max_stored: options.MaxStored = COORDINATOR.max_stored_bytes,
    log_level: options.LogLevel = "info",
) -> None:
    """Serve one replica of the gateway until SIGTERM or SIGINT."""
    try:
        coordinator = Settings(
            lease_ms=lease_ttl,
            turn_policy=turn_policy,
            turn_wait_ms=turn_wait,
            turn_limit_ms=turn_limit,
            queue_limit=queue_limit,
            interrupted_turns=interrupted_turns,
            implicit_turns=implicit_turns,
            transcripts=transcripts,
            source=source,
            idle_ms=idle,
            durability=durability,
            durability_replicas=durability_replicas,
            durability_timeout_ms=durability_timeout,
            daily=daily,
            result_ttl_ms=result_ttl,
            key_ttl_ms=key_ttl,
            session_ttl_ms=session_ttl,
            response_ttl_ms=response_ttl,
            max_running=max_running,
            max_stored_bytes=max_stored,
        )
    except ValueError as error:
        raise AskedWrongly(str(error)) from None
    settings = GatewaySettings(
        host=host,
        port=port,
        store=store,
        upstream=upstream,
        upstream_api_key=upstream_api_key,
        keys=_api_keys(keys, api_keys),
        upstream_timeout_ms=upstream_timeout,
        on_disconnect=on_disconnect,
        scope_as=scope_as,
        scope_implicit=scope_implicit,
        fence_header=fence_header,
        drain_timeout_ms=drain_timeout,
        max_body_bytes=max_body,
        coordinator=coordinator,
    )
    _check(settings)
    logs.set_up(log_level)
    _announce(settings)
    _run(settings)


def _api_keys(path: Path | None, inline: str | None) -> ApiKeys:
    try:
        return ApiKeys.load(path, inline)
    except KeysError as error:
        raise AskedWrongly(f"API keys: {error}") from None


def _check(settings: GatewaySettings) -> None:
    """What takes more than one option to judge."""
    if not settings.host:
        raise typer.BadParameter("it must not be empty; 0.0.0.0 is every address", param_hint="--host")
    if settings.keys.open and not _is_loopback(settings.host):
        raise typer.BadParameter(
            f"{settings.host} is not a loopback address, and without keys whoever reaches it would be served; "
            f"set --keys or {INLINE}",
            param_hint="--host",
        )
    if settings.upstream is not None:
        try:
            UpstreamExecutor(
                settings.upstream, settings.upstream_api_key, settings.upstream_timeout_ms, settings.max_answer_bytes
            )
        except ValueError as error:
            message = without_secrets(f"{settings.upstream}: {error}", settings.upstream)
            raise typer.BadParameter(message, param_hint="--upstream") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announce(settings: GatewaySettings) -> None:
    log = structlog.get_logger(__name__)
    upstream = settings.upstream
    log.info(
        "starting",
        url=http_url(settings.host, settings.port),
        store=without_secrets(settings.store, settings.store),
        upstream=without_secrets(upstream, upstream) if upstream else "the built-in echo model",
        tenants=settings.keys.tenants,
        keys="none needed" if settings.keys.open else "needed",
    )
    if settings.store.startswith("embedded:"):
        log.warning("the embedded store forgets everything when this process ends, and no other replica can share it")


def _run(settings: GatewaySettings) -> None:
    try:
        asyncio.run(app.serve(settings))
    except (ValueError, NewerSchema) as error:
        raise AskedWrongly(without_secrets(str(error), settings.store)) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        url = http_url(settings.host, settings.port)
        raise typer.TyperException(f"cannot listen on {url}: {reason}") from None
