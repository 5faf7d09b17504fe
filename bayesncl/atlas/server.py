"""Serve an atlas on this machine, and save names into the folder of codes."""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bayesncl.atlas.build import MARKER
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import merge_names, names_tree, parse_names
from bayesncl.errors import InputError, as_input_error

NAMES = "/names.json"  # GET reads the names of the codes, POST merges names into them
MAX_POST_BYTES = 16_000_000


class Handler(SimpleHTTPRequestHandler):
    """Serve the files of one folder, and nothing else, to pages of this machine."""

    saving = threading.Lock()

    def __init__(self, *args: Any, codes: Sequence[CodesFolder], **options: Any) -> None:
        self.codes = codes
        super().__init__(*args, **options)

    def handle(self) -> None:
        with suppress(ConnectionError):  # a browser drops what a closed page had asked for
            super().handle()

    def send_head(self) -> Any:
        if not self.from_here():
            return self.send_error(421)
        path = self.path.partition("?")[0]
        if self.codes and path == NAMES:
            names = names_tree([folder.names() for folder in self.codes])
            return self.reply(json.dumps(names).encode(), "application/json")
        if self.codes and path in ("/", "/index.html"):  # the page may save
            page = (Path(self.directory) / "index.html").read_bytes()
            return self.reply(page.replace(b"<html ", b"<html data-saves ", 1), "text/html")
        try:
            file = Path(self.translate_path(self.path)).resolve()
            if file.is_relative_to(Path(self.directory).resolve()):  # follows no link out
                return super().send_head()
        except ValueError:  # a null byte in the address
            pass
        return self.send_error(404)

    def from_here(self) -> bool:
        """Whether the address is ours: another site may point its own name at it (rebinding)."""
        return self.headers.get("Host", "").rsplit(":", 1)[0] in ("127.0.0.1", "localhost")

    def do_POST(self) -> None:
        """Merge the posted names; only the page itself may post."""
        own = self.headers.get("Origin") == f"http://{self.headers.get('Host')}"
        length = self.headers.get("Content-Length", "")
        if not self.from_here() or not own:
            return self.send_error(403)
        if not self.codes or self.path != NAMES:
            return self.send_error(404)
        if not length.isdecimal() or int(length) > MAX_POST_BYTES:
            return self.send_error(413)
        try:
            body = self.rfile.read(int(length))  # before the lock: a page may send slowly
            with self.saving:
                save_posted(self.codes, body)
        except (InputError, ValueError, RecursionError, OSError) as error:
            return self.send_error(400, explain=str(error))
        self.reply(b"", "text/plain")

    def reply(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def list_directory(self, path: object) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def save_posted(codes: Sequence[CodesFolder], body: bytes) -> None:
    """Merge a names.json from the page into that of each folder it has names for."""
    given = parse_names(json.loads(body), "the request")
    for folder in codes:
        own = folder.names()
        same = [e for e in given if (e.fingerprint, e.dims) == (own.fingerprint, own.dims)]
        if any(each.dimensions or each.checks for each in same):
            folder.save_names(merge_names([own, *same])[0])


def make_server(
    folder: Path | str, port: int, codes: Sequence[CodesFolder] = ()
) -> ThreadingHTTPServer:
    """Return a server of `folder` on 127.0.0.1; port 0 picks a free port.

    The page saves names into the folders `codes`.
    """
    if not (Path(folder) / MARKER).is_file():
        raise InputError(f"{folder} is not an atlas (it has no {MARKER})")
    handler = partial(Handler, directory=str(folder), codes=codes)
    with as_input_error(f"cannot serve on port {port} (try --port 0)", OSError, OverflowError):
        return ThreadingHTTPServer(("127.0.0.1", port), handler)


def serve(folder: Path | str, port: int = 8000, codes: Sequence[CodesFolder] = ()) -> None:
    """Serve the atlas in `folder` on http://127.0.0.1:`port`/ until interrupted."""
    with make_server(folder, port, codes) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C stops)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
