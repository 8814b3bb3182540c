"""The verbs that look into a store and keep it in order."""

import re
from typing import Annotated

import typer
from rich.text import Text

from coordinator import Coordinator, Explicit, SessionBusy, is_ours
from gateway_adapter.auth import DEFAULT_TENANT
from gateway_adapter.cli import options
from gateway_adapter.cli.asking import asks_store
from gateway_adapter.cli.output import Answer, counted, listing, sheet
from gateway_adapter.cli.shown import finding_row, replica_row, session_facts, session_row, turn_facts, turn_row
from gateway_adapter.representation import finding_json, replica_json, session_json, turn_json


@asks_store
async def sessions(
    coordinator: Coordinator,
    tenant: options.TenantName = DEFAULT_TENANT,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1)] = 20,
) -> Answer:
    """List a tenant's sessions, the most recently active first."""
    found = await coordinator.sessions(tenant, limit=limit + 1)
    views, more = found[:limit], len(found) > limit
    data = {"object": "list", "data": [session_json(view) for view in views], "has_more": more}
    note = f"there are more: --limit {2 * limit}" if more else ""
    return Answer(data, listing([session_row(view) for view in views], "no sessions"), note)


@asks_store
async def session(
    coordinator: Coordinator, session_id: options.SessionId, tenant: options.TenantName = DEFAULT_TENANT
) -> Answer:
    """Show a session. An id that begins with a dash goes behind two: session -- -id"""
    view = await coordinator.session(tenant, session_id)
    return Answer(session_json(view), sheet(session_facts(view)))


@asks_store
async def turns(
    coordinator: Coordinator,
    session_id: options.OfSession = None,
    tenant: options.TenantName = DEFAULT_TENANT,
) -> Answer:
    """List the turns of a session that still have a record; without an id, the tenant's running turns."""
    if session_id is None:
        views, nothing = await coordinator.running_turns(tenant), "no running turns"
    else:
        views, nothing = await coordinator.turns(tenant, session_id), "no turns"
    data = {"object": "list", "data": [turn_json(view) for view in views]}
    return Answer(data, listing([turn_row(view) for view in views], nothing))


@asks_store
async def turn(
    coordinator: Coordinator, turn_id: options.TurnId, tenant: options.TenantName = DEFAULT_TENANT
) -> Answer:
    """Show a turn by its token. Its answer is not shown."""
    view = await coordinator.turn_view(tenant, turn_id)
    if view is None:
        raise typer.TyperException("no such turn, or its record is no longer kept")
    return Answer(turn_json(view), sheet(turn_facts(view)))


@asks_store
async def delete(
    coordinator: Coordinator,
    session_id: options.SessionId,
    tenant: options.TenantName = DEFAULT_TENANT,
    force: Annotated[bool, typer.Option("--force", help="End its running and waiting turns first.")] = False,
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Erase also the answers that keyed clients can fetch again.")
    ] = False,
) -> Answer:
    """Retire a session for good and erase what it holds. An id that begins with a dash: delete -- -id"""
    try:
        ended = await coordinator.delete_session(tenant, session_id, force=force, receipts=receipts)
    except SessionBusy as error:
        where = f" on {error.holder}" if error.holder else ""
        raise typer.TyperException(f"a turn is running or waiting in this session{where}; --force ends it") from None
    data = {"id": session_id, "object": "session.deleted", "deleted": True, "ended_turns": ended}
    return Answer(data, Text(f"deleted; {counted(len(ended), 'turn')} ended" if ended else "deleted"))


@asks_store
async def reset(
    coordinator: Coordinator,
    session_id: options.SessionId,
    tenant: options.TenantName = DEFAULT_TENANT,
    reason: options.Reason = "session_reset",
) -> Answer:
    """Open the next generation of a session's conversation; what runs in this one is stopped."""
    if not is_ours(session_id):
        raise typer.TyperException("a session under an id that the client chose has no next generation")
    done = await coordinator.reset_session(tenant, Explicit(session_id), reason=reason)
    data = {
        "id": session_id,
        "object": "session.reset",
        "reason": done.reason,
        "generation": done.generation,
        "session_id": done.session_id,
        "ended_turns": done.stopped,
    }
    ended = f"; {counted(len(done.stopped), 'turn')} ended" if done.stopped else ""
    return Answer(data, Text(f"generation {done.generation}: {done.session_id}{ended}"))


@asks_store
async def cancel(
    coordinator: Coordinator,
    wanted: options.SessionOrTurn,
    tenant: options.TenantName = DEFAULT_TENANT,
) -> Answer:
    """Ask a turn (by its token), or a session's live turns, to stop; the session stays."""
    if re.fullmatch(r"[0-9a-f]{32}", wanted):
        turns = [wanted] if await coordinator.cancel_turn(tenant, wanted) else []
    else:
        turns = await coordinator.cancel_session(tenant, wanted)
    data = {"id": wanted, "object": "cancelled", "turns": turns}
    return Answer(data, Text(f"{counted(len(turns), 'turn')} asked to stop" if turns else "nothing was running"))


@asks_store
async def replicas(coordinator: Coordinator) -> Answer:
    """List the replicas that serve on the store, as they last told of themselves."""
    views = await coordinator.replicas()
    data = {"object": "list", "data": [replica_json(view) for view in views]}
    return Answer(data, listing([replica_row(view) for view in views], "no replicas"))


@asks_store
async def settings(
    coordinator: Coordinator,
    lease_ttl: options.NewLeaseTtl = None,
    implicit_turns: options.NewImplicitTurns = None,
) -> Answer:
    """Show what all replicas have agreed on, or change it: they take it over within seconds, without a restart."""
    for name, value in (("lease_ms", lease_ttl), ("implicit_turns", implicit_turns)):
        if value is not None:
            try:
                await coordinator.agree_on(name, value)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    agreed = await coordinator.agreed_settings()
    return Answer({"object": "settings", **agreed}, sheet(dict(agreed) or {"settings": "nothing is agreed on yet"}))


@asks_store
async def doctor(coordinator: Coordinator) -> Answer:
    """Check the server and its settings; each finding names the command that mends it. Exit code 1: an error."""
    findings = [finding async for finding in coordinator.examine()]
    worst = "error" if any(finding.level == "error" for finding in findings) else "warning"
    bad = [finding for finding in findings if finding.level != "ok"]
    data = {"object": "doctor", "status": worst if bad else "ok", "findings": [finding_json(one) for one in findings]}
    rows = [finding_row(finding) for finding in findings]
    return Answer(data, listing(rows, "nothing was looked at"), exit_code=1 if worst == "error" and bad else 0)


@asks_store
async def prune(
    coordinator: Coordinator,
    tenant: options.AnyTenant = None,
    horizon: options.Horizon = None,
) -> Answer:
    """Drop conversations that were idle for the horizon, and finish what a dead replica left half done."""
    tenants = [tenant] if tenant else await coordinator.tenants()
    dropped = {name: await coordinator.prune(name, horizon) for name in tenants}
    total = sum(dropped.values())
    data = {"object": "prune", "dropped": total, "tenants": dropped}
    return Answer(data, Text(f"{counted(total, 'conversation')} dropped, {counted(len(tenants), 'tenant')} looked at"))
