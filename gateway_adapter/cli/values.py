"""What options are written like: durations, sizes, names, addresses; and how addresses are shown."""

import re

import typer

from coordinator import Daily, duration_ms
from coordinator.keys import TenantKeys
from coordinator.store import check_url
from gateway_adapter.affinity import ScopeCarrier

_DAY_MS = 86_400_000
_LONGEST_DAYS = 36_500  # far within the whole numbers that the store's scripts can count
_UNITS_MS = (("d", _DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_UNITS_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class AskedWrongly(typer.TyperException):
    """What is asked cannot be done as it is asked; no single option is to blame."""

    exit_code = 2


def duration(value: str | int) -> int:
    """Milliseconds of a duration as it is written; BadParameter when it is none. A default is a number already."""
    if isinstance(value, int):
        return value
    try:
        ms = duration_ms(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if ms > _LONGEST_DAYS * _DAY_MS:
        raise typer.BadParameter(f"{value!r} is too long: at most {_LONGEST_DAYS}d")
    return ms


def duration_text(ms: int) -> str:
    """A duration as people write it: the inverse of `duration`."""
    if ms == _DAY_MS:
        return "24h"
    return next((f"{ms // unit_ms}{unit}" for unit, unit_ms in _UNITS_MS if ms and ms % unit_ms == 0), "0")


def size(value: str | int) -> int:
    """Bytes of a size as it is written; BadParameter when it is none. A default is a number already."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"([0-9]{1,15}) ?([A-Z]*)", value.strip().upper())
    if not match or match[2] not in _UNITS_BYTES:
        raise typer.BadParameter(f"{value!r} is not a size; write it in bytes or like 512KB, 10MB, 4MiB")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def size_text(count: int) -> str:
    """A size as people write it: the inverse of `size`."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("GB", 10**9), ("MB", 10**6), ("KiB", 2**10), ("KB", 10**3))
    return next(
        (f"{count // unit_bytes}{unit}" for unit, unit_bytes in units if count and count % unit_bytes == 0), str(count)
    )


def daily(value: str | Daily) -> Daily:
    """A time of day in a zone; BadParameter when it is none."""
    try:
        return value if isinstance(value, Daily) else Daily.parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def scope_carrier(value: str | ScopeCarrier) -> ScopeCarrier:
    """Names for the affinity scope; BadParameter when they are none."""
    try:
        return value if isinstance(value, ScopeCarrier) else ScopeCarrier.parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def header_name(value: str) -> str:
    """A header's name; BadParameter when it is none, or one that has its own meaning."""
    try:
        return ScopeCarrier.parse(f"header:{value}").headers[0]
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a name for a header of one's own") from None


def store_url(value: str) -> str:
    """A store's URL; BadParameter when it makes no sense."""
    try:
        check_url(value)
    except ValueError as error:
        raise typer.BadParameter(without_secrets(str(error), value)) from None
    return value


def tenant_name(value: str) -> str:
    """A tenant's name; BadParameter when nobody can be called so."""
    try:
        TenantKeys(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


def wire_id(value: str) -> str:
    """An id as clients send it; BadParameter for bytes that no client can have sent."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not valid UTF-8") from None
    return value


def without_secrets(text: str, url: str) -> str:
    """A text about a URL, without what may be secret in that: user and password, and the query."""
    rest = url.partition("://")[2] or url
    user, at, place = rest.rpartition("@")
    query = place.partition("?")[2]
    text = text.replace(f"{user}@", "***@") if at else text
    return text.replace(f"?{query}", "?***") if query else text


def http_url(host: str, port: int) -> str:
    """The URL of a host and port, which may be an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
