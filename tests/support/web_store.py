"""A directory on loopback as a web server shows it: pages of links, and files by ranges where the server can.

`flaws` are what servers lack or do: see `WebFlaws`.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote


@dataclass
class WebFlaws:
    """What the server does not do as it should. May be changed while it runs."""

    ignores_ranges: bool = False
    """Every answer is the whole file, as of Python's own server."""
    hides_sizes: bool = False
    """No Content-Length in the answer to HEAD and to a GET without a range."""
    fails: str | None = None
    """Paths that match this pattern are answered with 503."""
    cuts: bool = False
    """Answers to ranges lack their last byte."""
    adds_links: str = ""
    """HTML at the head of each page of links."""


@contextmanager
def web_store(root: Path, flaws: WebFlaws | None = None) -> Iterator[str]:
    """The address of the directory `root`, as long as the block runs."""
    known = flaws or WebFlaws()

    class Handler(_Handler):
        flaws = known

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(root))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(SimpleHTTPRequestHandler):
    flaws: WebFlaws

    def do_GET(self) -> None:
        if self.flaws.fails is not None and re.search(self.flaws.fails, self.path):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            super().do_HEAD() if self.command == "HEAD" else super().do_GET()
            return
        content = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or self.flaws.ignores_ranges:
            self.send_response(HTTPStatus.OK)
        else:
            content = content[int(wanted[1]) : int(wanted[2]) + 1 - self.flaws.cuts]
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
        if wanted is not None or not self.flaws.hides_sizes:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def list_directory(self, path: Any) -> Any:
        names = [quote(child.name) + "/" * child.is_dir() for child in Path(path).iterdir()]
        page = self.flaws.adds_links + "".join(f'<a href="{name}">{name}</a>\n' for name in names)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return io.BytesIO(page.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the console."""
