"""Serve an atlas on this machine, for browsers that do not open files from disk."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..errors import InputError
from .build import MARKER


class Handler(SimpleHTTPRequestHandler):
    """Files of the folder, no listings, no log line per request, and only for pages of this machine."""

    def send_head(self) -> Any:
        # A page elsewhere may give its own name our address (DNS rebinding): the name it asks for tells.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(421)
            return None
        try:
            return super().send_head()
        except ValueError:  # a null byte in the address
            self.send_error(404)
            return None

    def list_directory(self, path: object) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of `folder` bound to 127.0.0.1; port 0 takes any free one."""
    if not (Path(folder) / MARKER).is_file():
        raise InputError(f"{folder} is not an atlas: it holds no {MARKER}")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot serve on port {port}: {error}") from error


def serve(folder: Path, port: int = 8000) -> None:
    """Serve the atlas in `folder` on http://127.0.0.1:`port`/ until interrupted; other machines cannot reach it."""
    with make_server(folder, port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C stops)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
