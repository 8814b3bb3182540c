"""How a session's affinity scope travels to the upstream, so that the prompt cache follows the conversation."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

PRESETS: Mapping[str, str] = {
    "off": "",
    "openai": "body:prompt_cache_key",
    "xai": "header:x-grok-conv-id",
    "openrouter": "body:session_id",
    "fireworks": "header:x-session-affinity",
    "litellm": "header:x-litellm-session-id",
}
"""What providers call it. OpenAI's name is understood by most compatible servers."""

# Names that would change what the request asks, or who asks it.
_RESERVED_BODY = frozenset({"messages", "model", "stream", "stream_options", "tools", "n"})
_RESERVED_HEADERS = frozenset({"authorization", "content-type", "content-length", "host", "accept", "accept-encoding"})


@dataclass(frozen=True, slots=True)
class ScopeCarrier:
    """The names under which upstream requests carry the scope."""

    members: tuple[str, ...]
    """Of the body."""
    headers: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads presets and `body:NAME`, `header:NAME`, with commas between. Raises ValueError."""
        members, headers = [], []
        for word in (piece.strip() for piece in text.split(",")):
            for part in PRESETS.get(word, word).split(","):
                place, _, name = part.partition(":")
                if place == "body" and re.fullmatch(r"\w{1,64}", name, re.ASCII) and name not in _RESERVED_BODY:
                    members.append(name)
                elif (
                    place == "header"
                    and re.fullmatch(r"[A-Za-z0-9-]{1,64}", name)
                    and name.lower() not in _RESERVED_HEADERS
                ):
                    headers.append(name)
                elif part:
                    raise ValueError(f"{word!r} is none of {', '.join(PRESETS)}, body:NAME or header:NAME")
        return cls(tuple(members), tuple(headers))

    def in_body(self, scope: str) -> dict[str, bytes]:
        """The members to add to a request's body, as raw JSON; one that the client set itself stays as it is."""
        return {name: json.dumps(scope).encode() for name in self.members}

    def in_headers(self, scope: str | None, sent: Mapping[str, str]) -> dict[str, str]:
        """The headers to send along: one that the client sent itself as it is, others with the scope, if any."""
        values = {name: sent.get(name, scope) for name in self.headers}
        return {name: value for name, value in values.items() if value is not None}
