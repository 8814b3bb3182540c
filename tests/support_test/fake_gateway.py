"""Stands in for a gateway: takes the flags of `serve`, answers /healthz, and shows its environment.

`--fail` makes it end at once, `--deaf` makes it ignore SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Every path answers 200 with the process's id, flags and environment."""

    def do_GET(self) -> None:
        """Answer."""
        body = json.dumps({"pid": os.getpid(), "flags": sys.argv[1:], "env": dict(os.environ)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if "--fail" in sys.argv:
        sys.exit("no store at this address")
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
