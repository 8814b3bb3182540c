"""Requests that no HTTP library would send."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

from multidict import CIMultiDict

from tests.support.clients import TIMEOUT_S, Reply

BODY = json.dumps({"model": "ok", "messages": [{"role": "user", "content": "hello"}]}).encode()
"""A request that is right in itself."""


async def send(url: str, data: bytes) -> Reply:
    """Write these bytes to the server at `url` and read its one answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode("utf-8", "surrogateescape").removesuffix("\r\n\r\n").split("\r\n")
            headers = CIMultiDict[str]()
            for line in lines:
                name, _, value = line.partition(": ")
                headers.add(name, value)
            body = await reader.readexactly(int(headers.get("Content-Length", "0")))
            return Reply(int(status_line.split(" ")[1]), headers, body)
    finally:
        writer.close()


def post(*headers: tuple[bytes, bytes], body: bytes = BODY, path: bytes = b"/v1/chat/completions") -> bytes:
    """A POST with these headers beside the usual ones."""
    usual = ((b"Host", b"x"), (b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)))
    return request(b"POST " + path + b" HTTP/1.1", *usual, *headers) + body


def request(first_line: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    """The head of a request."""
    return b"".join([first_line, b"\r\n", *(name + b": " + value + b"\r\n" for name, value in headers), b"\r\n"])
