"""Store URLs: what they may look like, and what they say."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError

Endpoint = tuple[str, int]
"""Host and port of a server."""

_KINDS: dict[str, Literal["embedded", "single", "sentinel", "cluster"]] = {
    "embedded": "embedded",
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}

_DEFAULT_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_EXAMPLES = {
    "redis": "redis://localhost:6379/0",
    "rediss": "rediss://localhost:6379/0",
    "redis+sentinel": "redis+sentinel://one:26379,two:26379/mymaster/0",
    "rediss+sentinel": "rediss+sentinel://one:26379,two:26379/mymaster/0",
    "redis+cluster": "redis+cluster://one:6379,two:6379",
    "rediss+cluster": "rediss+cluster://one:6379,two:6379",
}
_TLS_OPTIONS = frozenset(name for name in inspect.signature(SSLConnection).parameters if name.startswith("ssl_"))
_FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_OPTIONS = frozenset({"db", "username", "password"})


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store URL, taken apart."""

    kind: Literal["embedded", "single", "sentinel", "cluster"]
    url: str
    endpoints: tuple[Endpoint, ...] = ()
    """The servers named: one, the sentinels, or some of the cluster's nodes. None for a socket's path."""
    service: str = ""
    """What the sentinels call the primary."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a connection to a server with data takes, besides host and port: user, database, TLS, a socket's path."""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict)
    """The same for a connection to a sentinel."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Takes a URL apart.

        Raises:
            ValueError: it makes no sense; says why in words for a person, without the password.
        """
        try:
            parts = urlsplit(url)
        except ValueError as error:  # a bracket that is never closed
            raise ValueError(f"store URL: {error}") from None
        if parts.scheme not in _KINDS:
            schemes = ", ".join(f"{scheme}://" for scheme in _KINDS)
            raise ValueError(f"store URL {_shown(url)!r}: the scheme must be one of {schemes}")
        kind = _KINDS[parts.scheme]
        if kind == "embedded":
            return cls(kind, url)
        try:
            return cls._of_servers(kind, url, parts)
        except ValueError as error:
            raise ValueError(f"store URL {_shown(url)!r}: {error}") from None

    @classmethod
    def _of_servers(cls, kind: Literal["single", "sentinel", "cluster"], url: str, parts: SplitResult) -> Self:
        query = dict(_query(parts))
        own = {name: query.pop(name) for name in _SENTINEL_OPTIONS & query.keys()}
        service, db = _path(kind, parts)
        user, _, hosts = parts.netloc.rpartition("@")
        endpoints = () if parts.scheme == "unix" else tuple(_endpoints(hosts, kind, _EXAMPLES[parts.scheme]))
        # From here on it is the client library's own URL, of one server, and read by the library.
        place = unquote(parts.path) if parts.scheme == "unix" else f"/{db}"
        scheme = parts.scheme.partition("+")[0]
        host = "" if parts.scheme == "unix" else "server"
        options: dict[str, Any] = dict(parse_url(f"{scheme}://{user}@{host}{quote(place)}?{urlencode(query)}"))
        options.pop("host", None)
        if kind == "cluster" and options.pop("db", 0):
            raise ValueError("a cluster has no other database than 0")
        _check(options)
        tls = {name: value for name, value in options.items() if name.startswith("ssl_") or name == "connection_class"}
        sentinel = {**tls, **{name.removeprefix("sentinel_"): value for name, value in own.items()}}
        return cls(kind, url, endpoints, service, options, sentinel)


def _check(options: dict[str, Any]) -> None:
    """Raises ValueError when no connection can be made with these."""
    others = {name: value for name, value in options.items() if name != "connection_class"}
    try:
        options.get("connection_class", Connection)(**others)
    except RedisError as error:
        raise ValueError(str(error)) from None


def check_url(url: str) -> None:
    """Raises ValueError, in words for a person, when a store URL makes no sense."""
    StoreAddress.parse(url)


def _shown(url: str) -> str:
    """The URL without its password."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    password = user.partition(":")[2]
    return url.replace(f":{password}@", ":***@", 1) if at and password else url


def _query(parts: SplitResult) -> Iterator[tuple[str, str]]:
    tls = parts.scheme.startswith("rediss")
    known = _OPTIONS | (_TLS_OPTIONS if tls else frozenset())
    if "sentinel" in parts.scheme:
        known |= _SENTINEL_OPTIONS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TLS_OPTIONS and not tls:
            raise ValueError(f"{name} is for TLS, which is the scheme rediss in the place of redis")
        if name not in known:
            raise ValueError(f"{name!r} is not an option; there are {', '.join(sorted(known))}")
        if name in _FILES and not Path(value).is_file():
            raise ValueError(f"{name}: there is no file {value!r}")
        yield name, value


def _path(kind: str, parts: SplitResult) -> tuple[str, str]:
    """Service name and database number."""
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("the socket's path is missing, as in unix:///run/redis.sock")
        return "", ""
    pieces = parts.path.strip("/").split("/")
    service = unquote(pieces.pop(0)) if kind == "sentinel" else ""
    if kind == "sentinel" and not service:
        raise ValueError(f"the service's name is missing, as in {_EXAMPLES[parts.scheme]}")
    db = "/".join(pieces) or "0"
    if not db.isdecimal():
        raise ValueError("the database must be a number, as in /0")
    return service, db


def _endpoints(hosts: str, kind: str, example: str) -> Iterator[Endpoint]:
    several = hosts.split(",")
    if kind == "single" and len(several) > 1:
        raise ValueError("several hosts are for sentinels (redis+sentinel://) or a cluster (redis+cluster://)")
    for host in several:
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise ValueError(f"the host is missing, as in {example}")
        yield unquote(one.hostname), one.port or _DEFAULT_PORTS[kind]
