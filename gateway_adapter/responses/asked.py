"""What a client of `/v1/responses` or `/v1/runs` asks for, and which conversation that is."""

from dataclasses import dataclass

from aiohttp import web

from coordinator import (
    Address,
    Coordinator,
    Declared,
    Explicit,
    Minted,
    SessionNotFound,
    Settings,
    TurnRequest,
    fingerprint,
)
from gateway_adapter import context
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import TurnPolicy, idempotency_key, session_id, session_key, single_header, turn_policy
from gateway_adapter.responses.lookup import NOWHERE, continued
from gateway_adapter.responses.request import ResponsesRequest, parse_responses


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a response."""

    tenant: str
    route: str
    body: ResponsesRequest
    key: str | None
    named: str | None
    """The session id it names, in whichever place."""
    declared: str | None
    policy: TurnPolicy | None

    @property
    def about(self) -> dict[str, str]:
        """Headers of the answer: the declared key, when that is what led to the session."""
        others = self.named is not None or self.body.previous_response_id is not None
        return {} if self.declared is None or others else {"X-Hermes-Session-Key": self.declared}

    @property
    def resumable(self) -> bool:
        """Whether a client that was cut off can go on reading."""
        return self.key is not None or self.body.store

    async def turn_request(self, coordinator: Coordinator, settings: Settings) -> TurnRequest:
        """The same as the coordinator is asked. Raises SessionNotFound for a chain that leads nowhere."""
        sent = [f"{what}:{value}" for what, value in (("id", self.named), ("key", self.declared)) if value is not None]
        return TurnRequest(
            tenant=self.tenant,
            address=await self._address(coordinator, settings),
            route=self.route,
            fingerprint=fingerprint(self.route, *sent, self.body.canonical),
            idempotency_key=self.key,
            policy=self.policy,
            follow=self.body.stream,
            stored=self.body.store,
            about=self.body.raw if self.body.store else b"",
            history="store",
        )

    async def _address(self, coordinator: Coordinator, settings: Settings) -> Address:
        previous = self.body.previous_response_id
        if previous is not None:
            try:
                chain = await continued(coordinator, self.tenant, previous)
            except SessionNotFound:
                if self.key is None:
                    raise
                return NOWHERE  # what its key was answered is told first, and only then that the chain is gone
            if self.named is not None and self.named != chain.session_id:
                raise _conflict()
            return chain
        if self.named is not None:
            return Explicit(self.named)
        if self.declared is not None:
            return Declared(settings.source, self.declared)
        return Minted()


async def parse(request: web.Request, route: str, raw: bytes, named: str | None = None) -> Asked:
    """Reads body and headers. `named`: a session id that the body names in its own way. Raises InvalidRequest."""
    headers = request.headers
    key = idempotency_key(headers)
    header = single_header(headers, "X-Hermes-Session-Id", "invalid_session_id")
    declared = single_header(headers, "X-Hermes-Session-Key", "invalid_session_key")
    policy = single_header(headers, "X-Hermes-Turn-Policy", "invalid_turn_policy")
    body = parse_responses(raw)
    ids = {session_id(value) for value in (header, named, body.conversation) if value is not None}
    if len(ids) > 1:
        raise _conflict()
    return Asked(
        tenant=request[context.TENANT],
        route=route,
        body=body,
        key=key,
        named=ids.pop() if ids else None,
        declared=session_key(declared) if declared is not None else None,
        policy=turn_policy(policy) if policy else None,
    )


def of_record(tenant: str, route: str, raw: bytes) -> Asked:
    """The same, from what was kept of it with its turn."""
    return Asked(tenant, route, parse_responses(raw), None, None, None, None)


def _conflict() -> InvalidRequest:
    return InvalidRequest("The request names two different sessions.", None, "conflicting_session")
