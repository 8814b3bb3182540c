"""The command `session-coordinator`."""

import io
import os
import sys
from collections.abc import Sequence

import typer

from gateway_adapter.cli.inspect import (
    cancel,
    delete,
    doctor,
    prune,
    replicas,
    reset,
    session,
    sessions,
    settings,
    turn,
    turns,
)
from gateway_adapter.cli.keys import new
from gateway_adapter.cli.serve import NOTES, serve

_NAME = "session-coordinator"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (default: the process's own) and returns its exit code.

    0: done. 1: refused or failed. 2: asked wrongly. What went wrong is one line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an id may have characters that the terminal has not
    try:
        code = _commands()(args=arguments, prog_name=_NAME, standalone_mode=False) or 0
        sys.stdout.flush()
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        message = error.format_message().replace("Value error, ", "")  # how typer's validation begins our sentences
        if message:  # empty when the help was shown instead
            sys.stderr.write(f"{context.command_path if context else _NAME}: {' '.join(message.splitlines())}\n")
        return error.exit_code
    except BrokenPipeError:  # whoever read has enough; the interpreter must not try once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _commands() -> typer.Typer:
    commands = typer.Typer(
        help="One conversation, one turn at a time, over any number of gateway replicas that share a store.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they print local variables, keys among them
    )
    commands.command(rich_help_panel="Gateway", epilog=NOTES)(serve)
    keys = typer.Typer(help="Make API keys.", no_args_is_help=True)
    keys.command()(new)
    commands.add_typer(keys, name="keys", rich_help_panel="Gateway")
    for verb in (sessions, session, turns, turn, replicas, doctor):
        commands.command(rich_help_panel="Look")(verb)
    for verb in (reset, cancel, delete, prune, settings):
        commands.command(rich_help_panel="Tidy")(verb)
    return commands
