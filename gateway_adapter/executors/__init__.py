"""What runs a turn: an OpenAI-compatible upstream, or the built-in echo model."""

from gateway_adapter.executors.base import (
    Answer,
    Executor,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
)
from gateway_adapter.executors.echo import EchoExecutor
from gateway_adapter.executors.upstream import UpstreamExecutor

__all__ = [
    "Answer",
    "EchoExecutor",
    "Executor",
    "UpstreamAuthFailed",
    "UpstreamError",
    "UpstreamExecutor",
    "UpstreamFailed",
    "UpstreamRefused",
    "UpstreamUnavailable",
]
