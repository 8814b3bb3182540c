"""How the gateway adapter is set up, beyond the coordinator's own settings."""

from dataclasses import dataclass, field
from typing import Literal

from coordinator import Settings
from gateway_adapter.affinity import ScopeCarrier
from gateway_adapter.auth import ApiKeys


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewaySettings:
    """One replica of the gateway. Durations are whole milliseconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8080
    store: str = "embedded://"
    upstream: str | None = None
    """Base URL of an OpenAI-compatible API, ending in /v1; None: the built-in echo model."""
    upstream_api_key: str | None = field(default=None, repr=False)
    keys: ApiKeys = field(default_factory=lambda: ApiKeys.load(None, None))
    upstream_timeout_ms: int = 300_000
    """The longest silence of the upstream within an answer."""
    on_disconnect: Literal["auto", "finish", "cancel"] = "auto"
    """What becomes of a turn whose client has gone: auto finishes it when a retry can fetch the answer."""
    scope_as: ScopeCarrier = field(default_factory=lambda: ScopeCarrier.parse("openai"))
    """Under which names upstream requests carry the affinity scope of their session."""
    scope_implicit: bool = False
    """Whether they do so too for conversations found by their opening: a name for each would split the cache of a
    system prompt that they share."""
    fence_header: str | None = None
    """The header under which upstream requests carry the turn's fence; None: they do not."""
    drain_timeout_ms: int = 20_000
    """How long running turns may take after SIGTERM."""
    max_body_bytes: int = 10_000_000
    max_answer_bytes: int = 64_000_000
    """The largest JSON answer taken from the upstream: it is held in memory until it is committed."""
    coordinator: Settings = field(default_factory=Settings)
