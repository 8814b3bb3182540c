"""API keys: which tenant a bearer belongs to. Only digests of keys are kept."""

import hashlib
import re
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

INLINE = "COORDINATOR_API_KEYS"
DEFAULT_TENANT = "default"

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_BARE_TOML_KEY = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED_OR_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')|#.*""")
_KEY_BYTES = 32  # random bytes of a new key: as strong as the digest it is compared by

# Where an entry stands (looked up only when it is wrong), its tenant, and the SHA-256 of its key.
_Entry = tuple[Callable[[], str], str, bytes]


class KeysError(Exception):
    """The keys cannot be used; the message names the place of the mistake and never repeats a key."""


class ApiKeys:
    """The keys of all tenants, from a TOML file, from `tenant:key,tenant:key`, or both."""

    def __init__(self, tenants: Mapping[bytes, str] | None) -> None:
        self._tenants = tenants  # SHA-256 of a key -> tenant; None when no keys are configured

    @classmethod
    def load(cls, path: Path | None, inline: str | None) -> "ApiKeys":
        """Read what is configured; KeysError names the file and line, or the inline entry, that is wrong."""
        tenants: dict[bytes, str] = {}
        sources = [_from_file(path)] if path is not None else []
        if inline and inline.strip():
            sources.append(_from_inline(inline))
        for place, tenant, digest in (entry for source in sources for entry in source):
            if tenants.setdefault(digest, tenant) != tenant:
                raise KeysError(f"{place()}: this key belongs to another tenant already")
        return cls(tenants if sources else None)

    @property
    def open(self) -> bool:
        """Whether no keys are configured: whatever is sent, the tenant is `default`."""
        return self._tenants is None

    @property
    def tenants(self) -> list[str]:
        """Whoever may be served, by name."""
        return [DEFAULT_TENANT] if self._tenants is None else sorted({*self._tenants.values()})

    def tenant_of(self, authorization_header: str | None) -> str | None:
        """The tenant of an `Authorization` header; None refuses it."""
        if self._tenants is None:
            return DEFAULT_TENANT
        scheme, _, key = (authorization_header or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key or not key.isascii():
            return None
        return self._tenants.get(_digest(key))  # how far two digests agree tells nothing of the keys


def new_key(tenant: str) -> tuple[str, str]:
    """A new key and the lines of the keys file that admit it; KeysError when the tenant cannot be named so."""
    if not _TENANT.fullmatch(tenant):
        raise KeysError("a tenant is 1 to 64 of A-Z a-z 0-9 . _ -")
    key = "sk-" + secrets.token_urlsafe(_KEY_BYTES)
    table = tenant if _BARE_TOML_KEY.fullmatch(tenant) else f'"{tenant}"'
    return key, f'[tenants.{table}]\nkeys = ["sha256:{_digest(key).hex()}"]\n'


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("ascii")).digest()


def _from_inline(inline: str) -> Iterator[_Entry]:
    for number, entry in enumerate(inline.split(","), 1):
        place = f"{INLINE}, entry {number}"
        tenant, _, key = (part.strip() for part in entry.partition(":"))
        if not _TENANT.fullmatch(tenant):
            raise KeysError(f"{place}: a tenant is 1 to 64 of A-Z a-z 0-9 . _ -, followed by a colon and its key")
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise KeysError(f"{place}: a key is one or more visible ASCII characters")
        yield partial(str, place), tenant, _digest(key)


def _parsed(path: Path) -> tuple[str, dict[str, object]]:
    """The text of a keys file and what it says."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise KeysError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise KeysError(f"{path}, line {error.object.count(10, 0, error.start) + 1}: not UTF-8") from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeysError(f"{path}, {_syntax_error(str(error), text)}") from None


def _syntax_error(problem: str, text: str) -> str:
    """What the TOML reader says of a mistake, its line first."""
    what, _, where = problem.partition(" (at ")
    line = re.match(r"line (\d+)", where)
    return f"line {line[1] if line else text.rstrip().count(chr(10)) + 1}: {what}"


def _from_file(path: Path) -> Iterator[_Entry]:
    text, table = _parsed(path)
    lines = _Lines(path, text)
    tenants = table.get("tenants", {})
    for name in table:
        if name != "tenants":
            raise lines.error("only [tenants.NAME] tables belong here", name)
    if not isinstance(tenants, dict):
        raise lines.error("tenants must be a table", "tenants")
    found = False
    for tenant, entry in tenants.items():
        for place, digest in _digests(lines, tenant, entry):
            found = True
            yield place, tenant, digest
    if not found:  # or a file emptied by accident would open the gateway to everybody
        raise lines.error("the file holds no key")


def _digests(lines: "_Lines", tenant: str, entry: object) -> Iterator[tuple[Callable[[], str], bytes]]:
    if not _TENANT.fullmatch(tenant):
        raise lines.error("a tenant is 1 to 64 of A-Z a-z 0-9 . _ -", "tenants", tenant)
    if not isinstance(entry, dict):
        raise lines.error("a tenant must be a table with keys", "tenants", tenant)
    for name in entry:
        if name != "keys":
            raise lines.error("a tenant has nothing but keys", "tenants", tenant, name)
    keys = entry.get("keys")
    if not isinstance(keys, list):
        raise lines.error('a tenant needs keys = ["sha256:..."]', "tenants", tenant, "keys")
    for key in keys:
        digest = _DIGEST.fullmatch(key) if isinstance(key, str) else None
        if digest is None:
            raise lines.error("a key is written as sha256: and 64 hex digits", "tenants", tenant, "keys", str(key))
        yield partial(lines.place, "tenants", tenant, "keys", key), bytes.fromhex(digest[1])


class _Lines:
    """Finds an entry's line, which the TOML reader does not tell: the words of its path, each after the one before."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = [_QUOTED_OR_COMMENT.sub(r"\1", line) for line in text.split("\n")]

    def place(self, *words: str) -> str:
        """File and line of the last word that can be found."""
        line = 0
        for word in words:
            pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
            line = next((at for at in range(line, len(self._lines)) if pattern.search(self._lines[at])), line)
        return f"{self._path}, line {line + 1}"

    def error(self, problem: str, *words: str) -> KeysError:
        """The mistake made there."""
        return KeysError(f"{self.place(*words)}: {problem}")
