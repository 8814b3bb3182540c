"""Headers, bodies, the library's calls and the README say the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import coordinator.session_steps
import coordinator.steps
from coordinator.keys import MAILBOXES, REPLICAS, SETTINGS, TENANTS, TenantKeys, barrier_of
from coordinator.scripts import Script, load, names
from coordinator.scripts.__main__ import problems
from tests.lua.calls import Call
from tests.lua.situations import SITUATIONS
from tests.lua.stage import Stage

README = Path(__file__).parents[2] / "lua" / "README.md"
KEYS = TenantKeys("t")
KEY_NAMES = {
    "conversation": KEYS.conversation("<cid>"),
    "live": KEYS.live("<cid>"),
    "turns": KEYS.turns("<cid>"),
    "queue": KEYS.queue("<cid>"),
    "messages": KEYS.messages("<cid>"),
    "leftovers": KEYS.leftovers("<cid>"),
    "purging": KEYS.purging("<cid>"),
    "record": KEYS.record("<digest>"),
    "turn": KEYS.turn("<turn>"),
    "events": KEYS.events("<turn>"),
    "idempotency": KEYS.idempotency("<digest>"),
    "retired": KEYS.retired("<3 hex>"),
    "running": KEYS.running,
    "waiting": KEYS.waiting,
    "cancelling": KEYS.cancelling,
    "sessions": KEYS.sessions,
    "tombstones": KEYS.tombstones,
    "erasing": KEYS.erasing,
    "accepted": KEYS.accepted,
    "barrier": barrier_of(KEYS.running),
    "tenants": TENANTS,
    "settings": SETTINGS,
    "replicas": REPLICAS,
    "replica": MAILBOXES + "<id>",
}
"""The names of keys by their first word behind the tenant."""

every_script = pytest.mark.parametrize("script", [load(name) for name in names()], ids=names())


def words(script: Script) -> list[str]:
    """The reply words that a header lists."""
    return re.findall(r"^-- -> \{'(\w+)'", script.text, re.MULTILINE)


@pytest.mark.parametrize("store_url", ["embedded"], indirect=True)
@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
async def test_the_call_and_the_header_agree(stage: Stage, situation: Callable[[Stage], Awaitable[Call]]) -> None:
    """House rule 1: the library passes exactly the names that the header lists, and the tails that it has."""
    call = await situation(stage)
    script = call.script
    assert (set(call.keys), set(call.args)) == (set(script.keys), set(script.args))
    assert (bool(call.tail_keys), bool(call.tail)) == (script.keys_tail is not None, script.args_tail is not None)
    assert [name for name, key in call.keys.items() if key is None and name != "idempotency"] == []


@every_script
def test_the_body_and_the_header_agree(script: Script) -> None:
    """House rule 1: the body reads every key and argument that the header lists, no other, and by the same name."""
    assert problems(script) == []
    body = script.text[script.text.index("\n\n") :]
    for table, listed, tail in (("KEYS", script.keys, script.keys_tail), ("ARGV", script.args, script.args_tail)):
        assert {int(number) for number in re.findall(rf"\b{table}\[(\d+)\]", body)} == set(range(1, len(listed) + 1))
        assert bool(re.search(rf"\b{table}\[(i|at|2 \* i)\b", body)) == (tail is not None)
    for local, table, number in named_locals(body):
        assert local == (script.keys if table == "KEYS" else script.args)[int(number) - 1]


def named_locals(body: str) -> Iterator[tuple[str, str, str]]:
    """The locals, and fields of tables, that take over one key or argument each: name, table, number."""
    for fields in re.findall(r"^local \w+ = \{([^{}]+)\}", body, re.MULTILINE):
        yield from re.findall(r"(\w+) = (KEYS|ARGV)\[(\d+)\]", fields)
    for left, right in re.findall(r"^local ([\w, ]+) = ([^{\n]+)$", body, re.MULTILINE):
        values = re.split(r",\s*(?![^()]*\))", right)
        for local, value in zip(left.split(", "), values, strict=False):
            if found := re.fullmatch(r"(?:integer\()?(KEYS|ARGV)\[(\d+)\](?:, '\w+'\)| == '1')?", value):
                yield local, found[1], found[2]
    for number, name in re.findall(r"integer\(ARGV\[(\d+)\], '(\w+)'\)", body):
        yield name, "ARGV", number


@every_script
def test_the_library_knows_every_reply(script: Script) -> None:
    """House rule 2: every word of a header is matched where replies are turned into values."""
    source = inspect.getsource(coordinator.steps) + inspect.getsource(coordinator.session_steps)
    assert [word for word in words(script) if f'b"{word}"' not in source] == []


@every_script
def test_the_readme_lists_every_reply(script: Script) -> None:
    """K1: the reply words that people look up are those that there are."""
    section = README.read_text("utf-8").partition(f"### `{script.name}`")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == words(script)


def readme_rows() -> dict[str, str]:
    """The key table: a key's name, and its row."""
    return {
        row[1]: row[0] for row in re.finditer(r"^\| `(coord1:[^`]+)` \|.*$", README.read_text("utf-8"), re.MULTILINE)
    }


def test_the_readme_lists_every_key() -> None:
    """K1: the key table is complete, and names no key that there is not."""
    assert set(readme_rows()) == set(KEY_NAMES.values())


def test_the_readme_lists_every_include() -> None:
    """House rule 1: whoever writes a script finds there what is written already."""
    listed = re.findall(r"^\| `(lib/\w+)` \|", README.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(f"lib/{file.stem}" for file in README.parent.glob("lib/*.lua"))


@pytest.fixture
async def hash_fields(stage: Stage) -> dict[str, set[str]]:
    """Every field that the scripts write into hashes, by the key's first word."""
    found: dict[str, set[str]] = {}
    for situation in SITUATIONS.values():
        await stage.client.flushall()
        await (await situation(stage)).run(stage.store)
        for key, entry in (await stage.snapshot()).items():
            if isinstance(entry.value, dict) and entry.kind == "hash":
                found.setdefault(key.decode().split(":")[2], set()).update(name.decode() for name in entry.value)
    return found


@pytest.mark.parametrize("store_url", ["embedded"], indirect=True)
async def test_the_readme_lists_every_field(hash_fields: dict[str, set[str]]) -> None:
    """K1: whatever `HGETALL` shows is explained."""
    rows = readme_rows()
    assert set(hash_fields) == {"conversation", "turn", "idempotency", "record"}
    for word, fields in hash_fields.items():
        row = rows[KEY_NAMES[word]]
        assert [field for field in sorted(fields) if f"`{field}`" not in row] == []
