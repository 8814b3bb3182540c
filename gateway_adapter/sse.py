"""Server-sent events as bytes: cut a stream into its events, read one, write one. No byte passed on is changed."""

import re

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

# The end of a line and the blank line after it, for every line ending the standard knows. A CR ends the blank line,
# except after CRLF, where its LF may still be on the way. So no cut of the stream changes where its events end, and a
# stream that ends lines with CR alone never waits for the byte after an event.
_END = re.compile(rb"\r\n\r?\n|\r\n\r|\n[\r\n]|\r\r")
_CONTENT = re.compile(rb"[^\r\n]")
_LINE_END = re.compile(rb"\r\n|\r|\n")
# A byte order mark, and the blank lines that may stand before an event, belong before its first line.
_BEFORE = re.compile(rb"\A(?:\xef\xbb\xbf)?[\r\n]*")
_ID_LINE = re.compile(rb"(?:\A|(?<=[\r\n]))id(?::[^\r\n]*)?(?:\r\n|\r|\n)")


class EventSplitter:
    """Cuts a byte stream into event blocks; the blocks and `rest()` put together are the stream, byte for byte."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._begun = False  # whether _pending holds more than blank lines
        self._position = 0  # where in _pending to go on looking, so that a long event is looked at once

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes in, give back the events they complete, each with its blank line and any blank lines before it."""
        pending = self._pending
        pending += data
        blocks: list[bytes] = []
        start, position = 0, self._position
        while True:
            if not self._begun:
                content = _CONTENT.search(pending, position)
                if content is None:
                    position = len(pending)
                    break
                self._begun, position = True, content.start()
            end = _END.search(pending, position)
            if end is None or (end.group() == b"\r\n\r" and end.end() == len(pending)):
                position = len(pending)
                while pending[position - 1] in b"\r\n":  # at most three: they may be the first bytes of the end
                    position -= 1
                break
            blocks.append(bytes(pending[start : end.end()]))
            start = position = end.end()
            self._begun = False
        del pending[:start]
        self._position = position - start
        return blocks

    def rest(self) -> bytes:
        """What came after the last complete event."""
        return bytes(self._pending)


def data_of(block: bytes) -> bytes | None:
    """The data lines of an event, joined with a line feed; None when it has none (a comment, a name alone)."""
    lines: list[bytes] = []
    for line in block.removeprefix(b"\xef\xbb\xbf").splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None


def is_done(block: bytes) -> bool:
    """Whether this is the event that ends a chat stream."""
    data = data_of(block)
    return data is not None and data.strip() == b"[DONE]"


def with_id(block: bytes, number: int) -> bytes:
    """The event with `id: <number>` for its first line, which a client that lost the line sends as `Last-Event-ID`.

    An id that the upstream gave it goes: the last of two would count. Nothing else changes.
    """
    before = _BEFORE.match(block)
    start = before.end() if before else 0
    return block[:start] + b"id: %d\n" % number + _ID_LINE.sub(b"", block[start:])


def event(data: bytes) -> bytes:
    """One event with this payload; each line of it becomes a data line."""
    return b"data: " + _LINE_END.sub(b"\ndata: ", data) + b"\n\n"
