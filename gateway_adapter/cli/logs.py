"""Logging to stderr: a line of JSON each for machines, coloured text on a terminal."""

import logging
import sys
from collections.abc import Sequence

import structlog
from structlog.typing import Processor


def set_up(level: str) -> None:
    """Logs this level and above. Tracebacks carry no local variables: among those are keys and people's texts."""
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    ending: Sequence[Processor]
    if sys.stderr.isatty():
        ending = (structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),)
    else:
        ending = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
