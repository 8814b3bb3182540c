"""Sessions and turns as JSON, the same over HTTP and on the command line."""

from coordinator import Finding, ReplicaView, SessionView, TurnView


def session_json(view: SessionView) -> dict[str, object]:
    """A session; times are whole seconds since the epoch, as OpenAI's objects have them."""
    return {
        "id": view.id,
        "object": "session",
        "kind": view.kind,
        "source": view.source,
        "history": view.history,
        "generation": view.generation,
        "scope": view.scope,
        "turns": view.turns,
        "created_at": view.created_ms // 1000,
        "active_at": view.active_ms // 1000,
        "live": [
            {"turn": turn.turn, "replica": turn.replica, "fence": turn.fence, "expires_in_ms": turn.expires_in_ms}
            for turn in view.live
        ],
        "queued": view.queued,
    }


def turn_json(view: TurnView) -> dict[str, object]:
    """A turn, without its answer; times are ms since the epoch."""
    return {
        "id": view.turn,
        "object": "turn",
        "state": view.state,
        "session_id": view.session_id,
        "generation": view.generation,
        "fence": view.fence,
        "replica": view.replica,
        "route": view.route,
        "key": view.key_digest or None,
        "started_ms": view.started_ms,
        "ended_ms": view.ended_ms,
        "expires_in_ms": view.left_ms if view.state == "running" else None,
        "status": view.result.status if view.result else None,
        "kept": view.kept,
        "events": view.event_count,
    }


def replica_json(view: ReplicaView) -> dict[str, object]:
    """A replica; times are ms since the epoch."""
    return {
        "id": view.id,
        "object": "replica",
        "host": view.host,
        "pid": view.pid,
        "version": view.version,
        "started_ms": view.started_ms,
        "seen_ms": view.seen_ms,
        "running": view.running,
    }


def finding_json(finding: Finding) -> dict[str, object]:
    """A finding of the doctor's."""
    return {
        "level": finding.level,
        "name": finding.name,
        "message": finding.message,
        "repair": finding.repair or None,
    }
