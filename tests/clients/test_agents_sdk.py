"""The OpenAI Agents SDK over two replicas that it knows as one address. It is no dependency: where it is missing, these
are skipped (`pip install openai-agents`)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients.conftest import Client
from tests.support.balancer import RoundRobinBalancer

agents: Any = pytest.importorskip("agents", reason="openai-agents is not installed")


@pytest.fixture
async def model(start) -> AsyncIterator[Any]:
    """`model("ok")`: a model of the upstream's, as the SDK knows it."""
    agents.set_tracing_disabled(True)
    urls = [(await start()).url, (await start()).url]
    async with RoundRobinBalancer(urls) as balancer, Client(balancer.url) as client:
        yield lambda name: agents.OpenAIResponsesModel(model=name, openai_client=client)
        assert len(balancer.served) == 2


def weather() -> Any:
    """A tool; the stub upstream calls it, and one more, whatever it is asked."""
    asked: list[str] = []

    async def get_weather(city: str, days: int) -> str:
        asked.append(f"{city} {days}")
        return f"sunny in {city}"

    async def get_time(zone: str) -> str:
        asked.append(zone)
        return "noon"

    return [agents.function_tool(get_weather), agents.function_tool(get_time)], asked


def said(upstream: Any) -> list[tuple[str, Any]]:
    """Roles and texts of the last upstream call."""
    return [(message["role"], message["content"]) for message in upstream.calls[-1].json()["messages"]]


async def test_a_chain(model, upstream):
    """I2: an agent goes on by `previous_response_id`, sending only what is new, each time at the next replica."""
    agent = agents.Agent(name="Echo", instructions="be brief", model=model("ok"))
    result = await agents.Runner.run(agent, "one")
    for text in ("two", "three"):
        result = await agents.Runner.run(agent, text, previous_response_id=result.last_response_id)
        assert result.final_output == text
    assert said(upstream) == [("system", "be brief"), *((role, text) for text in ("one", "two") for role in
                              ("user", "assistant")), ("user", "three")]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_round_trip(model, upstream, stream):
    """I1, I2: the model calls tools, the SDK runs them and sends their outputs along the chain, the model answers."""
    tools, asked = weather()
    upstream.upcoming.append("tools")
    agent = agents.Agent(name="Weather", model=model("ok"), tools=tools)
    if stream:
        result = agents.Runner.run_streamed(agent, "weather?", auto_previous_response_id=True)
        kinds = [event.type async for event in result.stream_events()]
        assert "run_item_stream_event" in kinds
    else:
        result = await agents.Runner.run(agent, "weather?", auto_previous_response_id=True)
    assert sorted(asked) == ["UTC", "Zürich 3"]
    assert result.final_output == "weather?"
    assert [role for role, _ in said(upstream)] == ["user", "assistant", "tool", "tool"]
    assert {text for role, text in said(upstream) if role == "tool"} == {"sunny in Zürich", "noon"}
    assert upstream.count == 2


async def test_its_memory(model, upstream):
    """I1: the SDK's own session over a conversation: it reads the items, sends them along, and adds what is new."""
    chat = model("ok")
    memory = agents.OpenAIConversationsSession(openai_client=chat._client)
    tools, _ = weather()
    upstream.upcoming.append("tools")
    for text in ("one", "two"):
        result = await agents.Runner.run(agents.Agent(name="Echo", model=chat, tools=tools), text, session=memory)
        assert result.final_output == text
    assert [role for role, _ in said(upstream)] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    await memory.clear_session()


async def test_a_conversation(model, upstream):
    """I1: an agent's session is a conversation of the gateway's."""
    chat = model("ok")
    made = await chat._client.conversations.create()
    agent = agents.Agent(name="Echo", model=chat)
    for text in ("one", "two"):
        result = await agents.Runner.run(agent, text, conversation_id=made.id)
        assert result.final_output == text
    assert said(upstream) == [("user", "one"), ("assistant", "one"), ("user", "two")]
