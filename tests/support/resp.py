"""Where one RESP frame ends: enough of the protocol to pair requests with replies, in both versions."""

from __future__ import annotations

from collections.abc import Iterator

_BULK = b"$=!"
_AGGREGATE = b"*~>"
_MAP = b"%|"


def frame_end(buffer: bytes | bytearray, start: int = 0) -> int | None:
    """The index after the frame that begins at `start`, or None while it is incomplete. Inline commands are lines."""
    position, open_frames = start, 1
    while open_frames:
        line_end = buffer.find(b"\r\n", position)
        if line_end < 0:
            return None
        kind, head = buffer[position : position + 1], buffer[position + 1 : line_end]
        position = line_end + 2
        open_frames -= 1
        if kind in _BULK and int(head) >= 0:
            position += int(head) + 2
            if position > len(buffer):
                return None
        elif kind in _AGGREGATE:
            open_frames += max(int(head), 0)
        elif kind in _MAP:
            # An attribute (|) precedes the reply it belongs to: one more frame follows.
            open_frames += 2 * int(head) + (kind == b"|")
    return position


def take_frames(buffer: bytearray) -> Iterator[bytes]:
    """Remove and yield the complete frames at the front of `buffer`."""
    while (end := frame_end(buffer)) is not None:
        frame = bytes(buffer[:end])
        del buffer[:end]
        yield frame
