"""A broker of one queue on loopback that answers pulls as 5.3.3 does, or as a test tells it to: late, torn, wrong, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from spark_mq.client.blocking_connection import PROBE_CODE
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_response
from storage.rules.response_codes import ResponseCode

Answer = Callable[["FakeBroker", RemotingCommand], RemotingCommand | bytes | None]
"""An answer, bytes in place of one, or None: the connection is closed."""


def answer_probe(connection: socket.socket, request: RemotingCommand) -> None:
    """As every server answers what no request has as its code."""
    for piece in encode_frame(make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)):
        connection.sendall(piece)


class FakeBroker:
    """Serves the records of offsets from `minimum` on, at most `most` a pull; every request is kept in `requests`."""

    def __init__(self, records: Sequence[bytes | None], *, minimum: int = 0, most: int = 32) -> None:
        self.records = list(records)
        self.minimum = minimum
        self.most = most
        self.suggested_broker_id = 0
        self.requests: list[RemotingCommand] = []
        self.answers: list[Answer] = []
        """What answers the next requests, one each; behind the last one pulls are answered as a broker does."""
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def offsets(self) -> list[int]:
        """The offsets that were pulled, in the order of their requests."""
        return [int((request.ext_fields or {})["queueOffset"]) for request in self.requests]

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """DefaultMessageStore.getMessage, of one queue without a filter."""
        fields = request.ext_fields or {}
        at, count = int(fields["queueOffset"]), min(int(fields["maxMsgNums"]), self.most)
        end = len(self.records)
        body, then = b"", at
        if at < self.minimum:
            code, remark, then = ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", self.minimum
        elif at == end:
            code, remark = ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"
        elif at > end:
            code, remark, then = ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end
        else:
            found = self.records[at : at + count]
            body, then = b"".join(record for record in found if record is not None), at + len(found)
            code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
            remark = "FOUND" if body else "NO_MATCHED_MESSAGE"
        return self.said(request, code, remark, then, body)

    def said(self, request: RemotingCommand, code: int, remark: str, then: int, body: bytes = b"") -> RemotingCommand:
        """An answer with the fields of a pull's."""
        fields = {
            "suggestWhichBrokerId": str(self.suggested_broker_id),
            "nextBeginOffset": str(then),
            "minOffset": str(self.minimum),
            "maxOffset": str(len(self.records)),
        }
        return make_response(request, code, remark, fields, body)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        is_counted = False
        with suppress(OSError):
            while data := connection.recv(1 << 16):
                for request in reader.feed(data):
                    if request.code == PROBE_CODE:
                        answer_probe(connection, request)
                        continue
                    self.connections += not is_counted
                    is_counted = True
                    self.requests.append(request)
                    answer = self.answers.pop(0)(self, request) if self.answers else self.pull(request)
                    if answer is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    pieces = (answer,) if isinstance(answer, bytes) else encode_frame(answer)
                    for piece in pieces:
                        connection.sendall(piece)
