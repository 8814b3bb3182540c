"""The event splitter and the reading and writing of single events."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_adapter.sse import DONE, KEEP_ALIVE, EventSplitter, data_of, event, is_done

LINES = st.lists(st.sampled_from([b"data: ", b"{}", b"a", b":", "é🙂".encode(), b"\n", b"\r\n", b"\r"]), max_size=30)


@given(pieces=LINES, cuts=st.lists(st.integers(0, 100), max_size=10))
def test_no_cut_of_the_stream_changes_its_events(pieces, cuts):
    """H7: the same bytes give the same events however the network cut them, and together they are the stream."""
    stream = b"".join(pieces)
    whole = EventSplitter()
    expected = whole.feed(stream)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    splitter = EventSplitter()
    blocks = [block for start, end in pairwise(places) for block in splitter.feed(stream[start:end])]
    assert (blocks, splitter.rest()) == (expected, whole.rest())
    assert b"".join(blocks) + splitter.rest() == stream


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_ends_an_event(line_end):
    """H7: events end at a blank line, whichever of the three line endings the upstream writes."""
    blocks = [
        b"event: x" + line_end + b"data: 1" + line_end * 2,
        b": comment" + line_end * 2,
        b"data: 2" + line_end * 2,
    ]
    splitter = EventSplitter()
    assert splitter.feed(b"".join(blocks) + b"data: 3" + line_end) == blocks
    assert splitter.rest() == b"data: 3" + line_end


@pytest.mark.parametrize("block", [b"data: 1\n\n", b"data: 1\r\n\r\n", b"data: 1\r\r"])
def test_an_event_is_given_out_with_its_last_byte(block):
    """H1: an event does not wait for the byte after it."""
    splitter = EventSplitter()
    assert [splitter.feed(block[:-1]), splitter.feed(block[-1:])] == [[], [block]]


def test_a_long_event_is_looked_at_once():
    """H7: the time an event takes grows with its length only, not with its length and the number of its pieces."""
    splitter, piece = EventSplitter(), b"x" * 64
    splitter.feed(b"data: ")
    started = time.process_time()
    for _ in range(100_000):
        splitter.feed(piece)
    assert len(splitter.feed(b"\n\n")[0]) == 6 + 64 * 100_000 + 2
    assert time.process_time() - started < 5  # a second look at each byte would be 3 * 10^11 of them


def test_many_blank_lines_are_looked_at_once():
    """H7: blank lines between events belong to the next event and are passed over once."""
    splitter = EventSplitter()
    started = time.process_time()
    assert not any(splitter.feed(b"\n" * 64) for _ in range(50_000))
    assert splitter.feed(b"data: 1\n\n") == [b"\n" * 64 * 50_000 + b"data: 1\n\n"]
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: 1\n\n", b"1"),
        (b"data:1\n\n", b"1"),
        (b"data:  1\r\n\r\n", b" 1"),
        (b"id: 7\ndata: 1\nevent: x\ndata: 2\n\n", b"1\n2"),
        (b"data\n\n", b""),
        (b"\n\r\ndata: 1\r\r", b"1"),
        (b"\xef\xbb\xbfdata: 1\n\n", b"1"),
        (b": data: 1\n\n", None),
        (b"event: x\n\n", None),
        (b"database: 1\n\n", None),
        (KEEP_ALIVE, None),
        (DONE, b"[DONE]"),
    ],
)
def test_the_data_of_an_event(block, data):
    """H1: the data of an event is read as the standard says; comments and other fields have none."""
    assert data_of(block) == data


def test_only_the_done_event_is_done():
    """H1: `[DONE]` as a whole ends a chat stream, the same text inside an answer does not."""
    assert is_done(DONE)
    assert is_done(b"data:[DONE]\r\n\r\n")
    assert not any(map(is_done, [b'data: "[DONE]"\n\n', b": [DONE]\n\n", b"event: [DONE]\n\n"]))


@given(data=st.text("a\n: 🙂"))
def test_a_written_event_is_one_event_with_its_data(data):
    """H1: whatever the payload, what is written is one event and reads back as the payload."""
    block = event(data.encode())
    assert EventSplitter().feed(block) == [block]
    assert data_of(block) == data.encode()
