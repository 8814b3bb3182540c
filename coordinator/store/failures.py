"""What the errors of servers and connections mean for a call: one table."""

import re
from dataclasses import dataclass

from redis import exceptions

from coordinator.errors import CoordinatorError, ScriptError, StoreFull, StoreUnavailable

# What a server says in transition: the same call may be answered in a moment, here or by another server. Every call of
# this library may be sent twice.
_PASSING = {
    "LOADING": "the server is reading its data",
    "READONLY": "the server is a replica",
    "MASTERDOWN": "the server is a replica without a primary",
    "NOREPLICAS": "too few replicas are in reach",
    "CLUSTERDOWN": "the cluster is down, or nobody serves the slot",
    "MOVED": "the slot is on another server",
    "ASK": "the slot is on its way to another server",
    "TRYAGAIN": "the slot is on its way to another server",
    "BUSY": "a script runs too long",
    "UNBLOCKED": "the server changed its role",
}
# What only a person can change.
_LASTING = {
    "MISCONF": "the server cannot write to its disk",
    "NOAUTH": "the server asks for a password",
    "WRONGPASS": "the server does not accept the user or password",
    "NOPERM": "the user may not do what is needed",
    "EXECABORT": "the server refused a transaction",
}
# Whoever says this is no primary, or not any more: its connections are of no use.
_STRAY = frozenset({"READONLY", "MASTERDOWN", "UNBLOCKED"})

_REDIRECTION = frozenset({"MOVED", "ASK"})

# A command that a script may not run is told without a code, in one way by Redis 7.0 and in another by all later ones.
_DENIED_IN_SCRIPT = re.compile(r"ACL failure in script|The user executing the script can't ")
# Where a server puts words in front of what a script's command was refused with.
_WITHIN_SCRIPT = re.compile(r"(?:^|[\s:])@?user_script(?::\s*\d+)?: -?([A-Z]{2,}) ")
_CODE = re.compile(r"([A-Z]{2,})(?: |$)")


class NotPrimary(exceptions.ConnectionError):
    """A connection was made to a server that only copies another one."""


class StoreChanged(StoreUnavailable):
    """The store is another one than when the call was decided on, so it was not sent."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and what to do about it."""

    error: Exception
    """How it is told."""
    passing: bool = False
    """Whether the same call may succeed in a moment."""
    at_once: bool = False
    """Whether it may succeed without waiting: it is clear where."""
    unreachable: bool = False
    """Whether it was the connection that failed, or the cluster: where to send calls has to be found anew."""
    code: str = ""


def code_of(error: BaseException) -> str:
    """The error code that a server's reply begins with, also where a script's name is in front of it; '' for none."""
    code = getattr(error, "status_code", None)
    if code and code != "ERR":
        return str(code)
    text = str(error)
    if code is None and (match := _CODE.match(text)) and match[1] != "ERR":
        return match[1]
    if _DENIED_IN_SCRIPT.search(text):
        return "NOPERM"
    match = _WITHIN_SCRIPT.search(text)
    return match[1] if match else ""


def is_stray(error: object) -> bool:
    """Whether a reply says that the server is no primary, or not any more."""
    return isinstance(error, exceptions.ResponseError) and code_of(error) in _STRAY


def failure_of(error: Exception) -> Failure:
    """What an error means for the call that met it."""
    if isinstance(error, CoordinatorError):
        changed = isinstance(error, StoreChanged)
        return Failure(error, passing=changed, at_once=changed)
    code = code_of(error)
    if isinstance(error, exceptions.OutOfMemoryError) or code == "OOM":
        return Failure(StoreFull("the store is full"), code="OOM")
    if isinstance(error, exceptions.AuthenticationError) and code not in _LASTING:
        code = "WRONGPASS"
    if code in _LASTING:
        return Failure(_unavailable(code, _LASTING[code]), code=code)
    if code in _PASSING:
        return Failure(
            _unavailable(code, _PASSING[code]),
            passing=True,
            at_once=code in _REDIRECTION,
            unreachable=code == "CLUSTERDOWN",
            code=code,
        )
    if isinstance(error, NotPrimary):
        return Failure(StoreUnavailable("the store cannot serve: the server is a replica"), passing=True)
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)):
        return Failure(StoreUnavailable("the store cannot be reached"), passing=True, unreachable=True)
    if isinstance(error, exceptions.ResponseError):
        return Failure(ScriptError(str(error)))
    if isinstance(error, exceptions.RedisError):
        return Failure(StoreUnavailable(f"the store cannot serve: {type(error).__name__}"))
    return Failure(error)


def _unavailable(code: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store cannot serve: {reason} ({code})")
