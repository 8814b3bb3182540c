"""Who may know what: read from the source, so that a slip is found where it is written."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "gateway_adapter")

Rule = Callable[[str, ast.Module], list[str]]
"""Takes a module's dotted name and its tree, returns what it finds, each with its line."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the product: dotted name (a package's is that of its `__init__`) and tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text("utf-8"), str(path))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, at any depth: `redis.exceptions.RedisError`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain, with "" for what is no plain name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def within(name: str, *owners: str) -> bool:
    """Whether a dotted name is one of the owners or inside one."""
    return any(name == owner or name.startswith(f"{owner}.") for owner in owners)


def imports_one_way(module: str, tree: ast.Module) -> list[str]:
    """gateway_adapter -> coordinator -> redis, and nothing the other way or past one of them."""
    foreign = {
        "coordinator": ("aiohttp", "gateway_adapter"),
        "gateway_adapter": ("redis", "fakeredis", "valkey", "hiredis", "lupa"),
    }[module.partition(".")[0]]
    return [f"{line}: {name}" for line, name in imported(tree) if within(name, *foreign)]


def key_names_in_one_place(module: str, tree: ast.Module) -> list[str]:
    """Only coordinator.keys spells a key; what a docstring explains is not spelled."""
    if within(module, "coordinator.keys"):
        return []
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"{node.lineno}: {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and id(node) not in prose
        and isinstance(node.value, str | bytes)
        and "coord1" in str(node.value)
    ]


def store_errors_in_one_place(module: str, tree: ast.Module) -> list[str]:
    """Only coordinator.store and coordinator.scripts meet the client's exceptions; above them there are only ours."""
    if within(module, "coordinator.store", "coordinator.scripts"):
        return []
    found, clients = [], {"redis", "fakeredis"}
    for node in ast.walk(tree):  # `import redis.asyncio as client` makes `client.ConnectionError` one of them
        if isinstance(node, ast.Import):
            clients |= {alias.asname for alias in node.names if alias.asname and within(alias.name, "redis")}
    for line, name in imported(tree):
        if within(name, "redis") and (name.endswith("Error") or within(name, "redis.exceptions")):
            found.append(f"{line}: {name}")
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    errors = [node for node in attributes if node.attr.endswith("Error") or node.attr == "exceptions"]
    return found + [f"{node.lineno}: {dotted(node)}" for node in errors if within(dotted(node), *clients)]


def environment_in_one_place(module: str, tree: ast.Module) -> list[str]:
    """Only a package's settings module reads the environment."""
    if module.split(".")[1:2] == ["settings"]:
        return []
    readers = ("os.environ", "os.environb", "os.getenv", "os.getenvb")
    found = [f"{line}: {name}" for line, name in imported(tree) if within(name, *readers)]
    return found + [
        f"{node.lineno}: {dotted(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node) in readers
    ]


RULES = (imports_one_way, key_names_in_one_place, store_errors_in_one_place, environment_in_one_place)


@pytest.mark.parametrize("rule", RULES)
def test_the_product_keeps_to(rule: Rule) -> None:
    """The adapter knows HTTP, the coordinator knows the store, and each secret of theirs has one owner."""
    found = [f"{module}:{finding}" for module, tree in modules() for finding in rule(module, tree)]
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (imports_one_way, "gateway_adapter.app", "import redis.asyncio"),
        (imports_one_way, "gateway_adapter.app", "def late():\n    from fakeredis import FakeServer"),
        (imports_one_way, "coordinator.turn", "from aiohttp import web"),
        (imports_one_way, "coordinator.turn", "import gateway_adapter.app"),
        (key_names_in_one_place, "coordinator.turn", "key = f'coord1:{{{tenant}}}:live'"),
        (key_names_in_one_place, "gateway_adapter.app", "key = b'coord1:tenants'"),
        (store_errors_in_one_place, "coordinator.turn", "from redis.exceptions import RedisError"),
        (store_errors_in_one_place, "coordinator.turn", "from redis import exceptions"),
        (store_errors_in_one_place, "coordinator.mailbox", "import redis.asyncio as client\nclient.ConnectionError"),
        (store_errors_in_one_place, "coordinator.mailbox", "import redis\nredis.exceptions.RedisError"),
        (environment_in_one_place, "coordinator.keeper", "import os\nos.environ['HOME']"),
        (environment_in_one_place, "gateway_adapter.auth", "from os import getenv"),
    ],
)
def test_a_slip_is_found(rule: Rule, module: str, source: str) -> None:
    """Each rule sees the slips it is there for, wherever in a module they stand."""
    assert rule(module, ast.parse(source))


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (imports_one_way, "gateway_adapter.app", "from coordinator import Coordinator\nimport aiohttp"),
        (imports_one_way, "coordinator.store", "import redis.asyncio"),
        (key_names_in_one_place, "coordinator.keys", "PREFIX = 'coord1'"),
        (key_names_in_one_place, "coordinator.turn", "'''Writes coord1:{t}:live.'''"),
        (store_errors_in_one_place, "coordinator.store", "from redis.exceptions import RedisError"),
        (store_errors_in_one_place, "coordinator.mailbox", "from redis.asyncio import Redis"),
        (environment_in_one_place, "gateway_adapter.settings", "import os\nos.environ['HOME']"),
    ],
)
def test_what_is_allowed_is_not_found(rule: Rule, module: str, source: str) -> None:
    """The owner of a thing may use it, and prose about it is free."""
    assert not rule(module, ast.parse(source))
