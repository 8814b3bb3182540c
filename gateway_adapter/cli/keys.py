"""The verb `keys new`: an API key for a tenant, for people to hand out."""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gateway_adapter.auth import ApiKeys, KeysError, new_key
from gateway_adapter.cli import options
from gateway_adapter.cli.output import Answer
from gateway_adapter.cli.values import AskedWrongly

_MORE_THAN_COMMENTS = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)


def new(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it is.")],
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="Add it to this keys file; made if it is not there.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Make an API key. It is printed this once, with the lines that admit it: a keys file holds only digests."""
    try:
        key, lines = new_key(tenant)
    except KeysError as error:
        raise AskedWrongly(str(error)) from None
    note = ""
    if keys is not None:
        _add(keys, tenant, lines)
        note = f"added to {keys}; replicas read it when they start"
    answer = Answer({"tenant": tenant, "key": key, "toml": lines}, Text(f"{key}\n\n{lines.rstrip()}"), note)
    answer.show(as_json=as_json)


def _add(path: Path, tenant: str, lines: str) -> None:
    try:
        # In place, so that the file keeps its owner, its rights and the mounts that point to it.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            old = file.read()
            if _MORE_THAN_COMMENTS.search(old):
                ApiKeys.load(path, None)  # says which line is wrong, before another is added
            new = _with(old.decode("utf-8", "surrogateescape"), tenant, lines)
            if new is None:
                raise typer.TyperException(
                    f"{path} is written so that only a person can add to it: make the key without --keys"
                )
            file.seek(0)
            file.write(new.encode("utf-8", "surrogateescape"))
    except KeysError as error:
        raise AskedWrongly(f"API keys: {error}") from None
    except OSError as error:
        raise typer.TyperException(f"{path}: {error.strerror}") from None


def _with(old: str, tenant: str, lines: str) -> str | None:
    """The text of a keys file with one more key; None when it is written in a way that this cannot add to."""
    added = tomllib.loads(lines)["tenants"][tenant]["keys"]
    wanted = tomllib.loads(old)
    keys = wanted.setdefault("tenants", {}).setdefault(tenant, {"keys": []})["keys"]
    if keys:
        name = re.escape(tenant)
        table = rf"""^[ \t]*\[[ \t]*tenants[ \t]*\.[ \t]*(?:{name}|"{name}"|'{name}')[ \t]*\]"""
        found = re.search(rf"{table}[^\[]*?^[ \t]*keys[ \t]*=[ \t]*\[(\s*)", old, re.MULTILINE)
        new = f'{old[: found.end()]}"{added[0]}",{found[1] or " "}{old[found.end() :]}' if found else old
    else:
        new = f"{old.rstrip()}\n\n{lines}".lstrip("\n")
    keys[:0] = added
    try:
        return new if tomllib.loads(new) == wanted else None
    except tomllib.TOMLDecodeError:
        return None
