"""What the verbs that ask a store have in common: which store, how its replicas are set up, how an answer is shown."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import typer

from coordinator import Coordinator, CoordinatorError, Settings, StoreUnavailable
from gateway_adapter.cli import options
from gateway_adapter.cli.options import COORDINATOR, LOCAL_STORE
from gateway_adapter.cli.output import Answer
from gateway_adapter.cli.values import without_secrets

_P = ParamSpec("_P")
_Verb = Callable[Concatenate[Coordinator, _P], Awaitable[Answer]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asking:
    """The options that all of them have. The times are the replicas': whoever looks at a dead turn settles it, and what
    is settled is kept for as long as they keep it."""

    store: options.AskedStore = LOCAL_STORE
    as_json: options.AsJson = False
    result_ttl: options.ResultTtl = COORDINATOR.result_ttl_ms
    key_ttl: options.KeyTtl = COORDINATOR.key_ttl_ms
    session_ttl: options.SessionTtl = COORDINATOR.session_ttl_ms

    async def answer(self, verb: Callable[..., Awaitable[Answer]], values: dict[str, Any]) -> Answer:
        settings = Settings(
            result_ttl_ms=self.result_ttl,
            key_ttl_ms=self.key_ttl,
            session_ttl_ms=self.session_ttl,
        )
        async with Coordinator.open(self.store, settings, serving=False) as coordinator:
            return await verb(coordinator, **values)


def asks_store(verb: _Verb[_P]) -> Callable[..., None]:
    """A command from a coroutine: it is given a coordinator, its answer is printed, its errors are told in one line."""
    own = list(inspect.signature(verb).parameters.values())[1:]
    common = list(inspect.signature(_Asking).parameters.values())

    def command(**values: Any) -> None:
        asking = _Asking(**{parameter.name: values.pop(parameter.name) for parameter in common})
        try:
            answer = asyncio.run(asking.answer(verb, values))
        except StoreUnavailable as error:
            where = without_secrets(asking.store, asking.store)
            raise typer.TyperException(f"{error}: {where}") from None
        except CoordinatorError as error:
            raise typer.TyperException(str(error)) from None
        answer.show(as_json=asking.as_json)
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in [*own, *common]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
