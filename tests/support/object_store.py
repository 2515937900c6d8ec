"""A bucket on loopback: as much of S3's protocol as reading takes, over a directory. It counts what is fetched.

ListObjectsV2 with a delimiter, page by page, HEAD and GET with a byte range; no authentication. Amazon S3 API
Reference, version 2006-03-01.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


@dataclass
class ObjectStore:
    """`url` is the endpoint; `fetched` lists (key, bytes) of every GET of an object; a page of a listing holds `page_size` names."""

    root: Path
    url: str = ""
    page_size: int = 1_000
    fetched: list[tuple[str, int]] = field(default_factory=list)

    @property
    def fetched_bytes(self) -> int:
        return sum(size for _, size in self.fetched)


@contextmanager
def object_store(root: Path) -> Iterator[ObjectStore]:
    """The files under `root` as the objects of BUCKET, as long as the block runs."""
    served = ObjectStore(root)

    class Handler(_Handler):
        store = served

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        _, bucket, *key = unquote(parts.path).split("/", 2)
        if bucket != BUCKET:
            self._answer(404, _error("NoSuchBucket"))
        elif not key or not key[0]:
            self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        else:
            self._object(key[0])

    do_HEAD = do_GET

    def _object(self, key: str) -> None:
        path = self.store.root / key
        if not path.is_file():
            self._answer(404, _error("NoSuchKey"))
            return
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(wanted[1]), min(int(wanted[2] or size), size - 1) + 1) if wanted else (0, size)
        headers = {"Last-Modified": formatdate(0, usegmt=True), "ETag": f'"{size:x}"'}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        if self.command == "HEAD":
            self._answer(200, b"", headers | {"Content-Length": str(size)})
            return
        with path.open("rb") as file:
            file.seek(start)
            body = file.read(end - start)
        self.store.fetched.append((key, len(body)))
        self._answer(206 if wanted else 200, body, headers)

    def _list(self, query: dict[str, str]) -> None:
        """Objects and common prefixes directly under the prefix, or all under it without a delimiter."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys = [path.relative_to(self.store.root).as_posix() for path in self.store.root.rglob("*") if path.is_file()]
        rests = sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix))
        folders = sorted({rest.split(delimiter)[0] + delimiter for rest in rests if delimiter and delimiter in rest})
        files = [prefix + rest for rest in rests if not delimiter or delimiter not in rest]
        names = sorted([*folders, *(name.removeprefix(prefix) for name in files)])
        first = int(query.get("continuation-token", 0))
        end = first + min(int(query.get("max-keys", self.store.page_size)), self.store.page_size)
        page = set(names[first:end])
        folders = [folder for folder in folders if folder in page]
        files = [name for name in files if name.removeprefix(prefix) in page]
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(names) else ""
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{(self.store.root / key).stat().st_size}</Size></Contents>"
            for key in files
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix + folder)}</Prefix></CommonPrefixes>" for folder in folders
        )
        self._answer(
            200,
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(files) + len(folders)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}{contents}{prefixes}</ListBucketResult>".encode(),
            {"Content-Type": "application/xml"},
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the console."""


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
