"""Ids of responses and runs, and what is kept under them. Both are a turn whose answer is stored."""

import re

from coordinator import Continuation, Coordinator, Explicit, SessionNotFound, TurnView

RESPONSES = "responses"
RUNS = "runs"

NOWHERE = Explicit("ses_m" + 24 * "0" + "_1_" + 16 * "0")
"""A session that never was: naming it is refused as naming one that is gone."""

_ID = re.compile(r"(resp|run)_([idxm][0-9a-f]{24})_([0-9a-f]{32})")


def response_id(cid: str, turn: str) -> str:
    """The id of the response that a turn makes: it leads to the turn without a look-up. `cid` is the turn's `home`."""
    return f"resp_{cid}_{turn}"


def run_id(cid: str, turn: str) -> str:
    """The same turn's id as a run."""
    return f"run_{cid}_{turn}"


async def find(coordinator: Coordinator, tenant: str, wanted: str) -> TurnView:
    """The stored turn under an id, in whatever state it is.

    Raises:
        SessionNotFound: unknown, deleted, not stored, another tenant's, or of a session that is no more.
    """
    view = await _stored(coordinator, tenant, wanted)
    if view is None:
        raise SessionNotFound("no such response")
    return view


async def continued(coordinator: Coordinator, tenant: str, previous: str) -> Continuation:
    """Where a request goes on that names the response before it. Raises SessionNotFound."""
    view = await _stored(coordinator, tenant, previous)
    if view is None or view.state != "completed":
        raise SessionNotFound("no such session")  # as is said to those whose session goes while they wait
    return Continuation(view.session_id, view.length)


async def _stored(coordinator: Coordinator, tenant: str, wanted: str) -> TurnView | None:
    match = _ID.fullmatch(wanted)
    view = await coordinator.turn_view(tenant, match[3]) if match else None
    if view is None or view.route not in (RESPONSES, RUNS) or not view.stored or view.hidden:
        return None
    return view if await coordinator.is_current(tenant, view) else None
