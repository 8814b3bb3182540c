"""The objects that `/v1/responses` answers with."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gateway_adapter.responses.outputs import Fields, Output, item_id
from gateway_adapter.responses.request import ResponsesRequest

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def turn_of(response_id: str) -> str:
    """The turn a response is of: the last part of its id."""
    return response_id.rpartition("_")[2]


def response_object(
    request: ResponsesRequest,
    *,
    response_id: str,
    created_at: int,
    status: ResponseStatus,
    output: Output | None = None,
    error: Mapping[str, object] | None = None,
    conversation_id: str | None = None,
    completed_at: int | None = None,
) -> Fields:
    """A response, its members always in the same order. Times are seconds since the epoch; `error` is {code, message}.

    What the request left to the upstream is null, not guessed.
    """
    fields = request.fields
    reasoning, text = _mapping(fields.get("reasoning")), _mapping(fields.get("text"))
    incomplete = output.incomplete if output is not None else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": request.background,
        "completed_at": completed_at,
        "conversation": {"id": conversation_id} if conversation_id is not None else None,
        "error": dict(error) if error is not None else None,
        "incomplete_details": {"reason": incomplete} if incomplete is not None else None,
        "instructions": request.instructions,
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": fields.get("max_tool_calls"),
        "metadata": request.metadata or {},
        "model": request.model,
        "output": output.items if output is not None else [],
        "parallel_tool_calls": fields.get("parallel_tool_calls") is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": fields.get("service_tier"),
        "store": request.store,
        "temperature": fields.get("temperature"),
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity")},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in _sequence(fields.get("tools"))],
        "top_logprobs": fields.get("top_logprobs") or 0,
        "top_p": fields.get("top_p"),
        "truncation": fields.get("truncation") or "disabled",
        "usage": output.usage if output is not None else None,
        "user": fields.get("user"),
    }


def input_item_list(items: Sequence[Fields], response_id: str) -> list[Fields]:
    """The input items of a response, as `ResponsesRequest.input_items` has them, under ids of their own."""
    turn = turn_of(response_id)
    return [{"id": item_id("item", turn, number), "status": "completed", **item} for number, item in enumerate(items)]


def _tool(tool: object) -> Fields:
    return {"type": "function", "name": None, "description": None, "parameters": None, "strict": None} | _mapping(tool)


def _mapping(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> list[object]:
    return value if isinstance(value, list) else []
