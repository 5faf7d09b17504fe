"""Serve an atlas on this machine, for browsers that do not open files."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bayesncl.atlas.build import MARKER
from bayesncl.errors import InputError


class Handler(SimpleHTTPRequestHandler):
    """Serve the files of one folder, and nothing else, to pages of this machine."""

    def send_head(self) -> Any:
        # DNS rebinding: another site may point its own name at our address.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            return self.send_error(421)
        try:
            path = Path(self.translate_path(self.path)).resolve()
            if path.is_relative_to(Path(self.directory).resolve()):  # follows no link out
                return super().send_head()
        except ValueError:  # a null byte in the address
            pass
        return self.send_error(404)

    def list_directory(self, path: object) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of `folder` on 127.0.0.1; port 0 picks a free port."""
    if not (Path(folder) / MARKER).is_file():
        raise InputError(f"{folder} is not an atlas (it has no {MARKER})")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot serve on port {port}: {reason}; try --port 0") from error


def serve(folder: Path, port: int = 8000) -> None:
    """Serve the atlas in `folder` on http://127.0.0.1:`port`/ until interrupted."""
    with make_server(folder, port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C stops)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
