"""Sessions and turns as a person reads them: the rows of a list, the facts of one."""

from coordinator import Finding, ReplicaView, SessionView, TurnView
from gateway_adapter.cli.output import lasting, moment

_KINDS = {"i": "implicit", "d": "declared", "x": "explicit", "m": "minted"}


def session_row(view: SessionView) -> dict[str, object]:
    """A session in a list."""
    return {
        "active": moment(view.active_ms),
        "kind": _KINDS.get(view.kind, view.kind),
        "history": view.history,
        "generation": view.generation,
        "turns": view.turns,
        "live": len(view.live),
        "queued": view.queued,
        "session": view.id,
    }


def session_facts(view: SessionView) -> dict[str, object]:
    """All that is known of a session, a line for each of its running turns."""
    live = {
        f"live {number}": f"{turn.turn} on {turn.replica}, fence {turn.fence}, {lasting(turn.expires_in_ms)} left"
        for number, turn in enumerate(view.live, 1)
    }
    return {
        "session": view.id,
        "kind": _KINDS.get(view.kind, view.kind),
        "source": view.source,
        "history": view.history,
        "generation": view.generation,
        "scope": view.scope,
        "turns": view.turns,
        "created": moment(view.created_ms),
        "active": moment(view.active_ms),
        **(live or {"live": "none"}),
        "queued": view.queued,
    }


def turn_row(view: TurnView) -> dict[str, object]:
    """A turn in a list."""
    return {
        "turn": view.turn,
        "state": view.state,
        "started": moment(view.started_ms),
        "took": lasting(view.ended_ms - view.started_ms) if view.ended_ms else None,
        "left": lasting(view.left_ms) if view.state == "running" else None,
        "fence": view.fence,
        "route": view.route,
        "replica": view.replica,
        "session": view.session_id,
    }


def turn_facts(view: TurnView) -> dict[str, object]:
    """All that is known of a turn, but for what was said in it."""
    return {
        **turn_row(view),
        "generation": view.generation,
        "key": view.key_digest or None,
        "status": view.result.status if view.result else None,
        "kept": view.kept,
        "events": view.event_count,
    }


def replica_row(view: ReplicaView) -> dict[str, object]:
    """A replica in a list."""
    return {
        "replica": view.id,
        "host": view.host,
        "pid": view.pid,
        "version": view.version,
        "started": moment(view.started_ms),
        "seen": moment(view.seen_ms),
        "running": view.running,
    }


def finding_row(finding: Finding) -> dict[str, object]:
    """A finding in a list."""
    return {"level": finding.level, "what": finding.name, "found": finding.message, "repair": finding.repair or None}
