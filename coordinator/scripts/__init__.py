"""The Lua scripts: finding, expanding and describing them.

A script's header names its keys and arguments in order; that order is taken from there, so a call passes them by name
and the header cannot be wrong. `python -m coordinator.scripts` prints and checks them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_INCLUDE = re.compile(r"^--- @include (\S+)\n", re.MULTILINE)
PARAMETER = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.\.)?\] (\w+)", re.MULTILINE)

Value = str | bytes | int


def _folder() -> Traversable:
    packaged = files("coordinator") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One atomic step. `keys` and `args` are the names its header lists, in order; the tails are open-ended."""

    name: str
    text: str
    sha: str
    embedded_text: str
    """The same for the embedded store, which refuses the `#!lua` line."""
    embedded_sha: str
    keys: tuple[str, ...]
    keys_tail: str | None
    args: tuple[str, ...]
    args_tail: str | None

    def order(
        self,
        keys: Mapping[str, str | None],
        args: Mapping[str, Value],
        tail_keys: Sequence[str] = (),
        tail: Sequence[Value] = (),
    ) -> tuple[int, list[Value]]:
        """Number of keys, then keys and arguments in the header's order. A last key that is None is left out.

        Raises:
            KeyError: a name of the header is missing in the call.
            ValueError: the call passes a name that the header does not list.
        """
        if len(keys) != len(self.keys) or len(args) != len(self.args):
            unknown = (keys.keys() - set(self.keys)) | (args.keys() - set(self.args))
            if unknown:
                raise ValueError(f"{self.name} has no {', '.join(sorted(unknown))}")
        values: list[Value] = [key for name in self.keys if (key := keys[name]) is not None]
        values += tail_keys
        count = len(values)
        values += [args[name] for name in self.args]
        values += tail
        return count, values


@cache
def load(name: str) -> Script:
    """The script of that name, its includes expanded (each once, in order)."""
    included: set[str] = set()

    def expand(match: re.Match[str]) -> str:
        if match[1] in included:
            return ""
        included.add(match[1])
        return _read(match[1])

    text = _INCLUDE.sub(expand, _read(name))
    plain: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    tails: dict[str, str] = {}
    for table, _, tail, parameter in PARAMETER.findall(text):
        if tail:
            tails[table] = parameter
        else:
            plain[table].append(parameter)
    embedded_text = re.sub(r"^#!.*\n", "", text)
    return Script(
        name=name,
        text=text,
        sha=_sha(text),
        embedded_text=embedded_text,
        embedded_sha=_sha(embedded_text),
        keys=tuple(plain["KEYS"]),
        keys_tail=tails.get("KEYS"),
        args=tuple(plain["ARGV"]),
        args_tail=tails.get("ARGV"),
    )


def _sha(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()  # the store names scripts by their SHA-1


def names() -> list[str]:
    """All scripts, sorted."""
    return sorted(entry.name.removesuffix(".lua") for entry in _folder().iterdir() if entry.name.endswith(".lua"))


def _read(name: str) -> str:
    entry = _folder()
    for part in f"{name}.lua".split("/"):
        entry = entry / part
    return entry.read_text("utf-8")
