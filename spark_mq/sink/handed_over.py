"""The sink's side of a hand-over: a staged batch goes to the broker of ours that has the store open, on this machine.

The answer is what a commit of the sink's own would have come to. Where none comes, because the broker has ended, nobody knows whether
the batch was decided: the sink asks again whoever has the store then, and says where the log ended when the lost try began.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import NamedTuple

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import ANSWER_BYTES_MOST, REQUEST_BYTES_MOST, FrameError
from spark_mq.hand_over.messages import HandOver, begun_at, read_answer, request_document
from storage.batch.commit import CommitOutcome
from storage.batch.staged_segment import staged_directory
from storage.errors import StagedRowsGoneError, StorageError, StoreServedError

SILENCE_SECONDS = 30.0
"""A broker that lives says so each second."""
_IN_DOUBT = "whether the batch is in the store the next try tells"


class Unanswered(NamedTuple):
    """No answer, and no broker there any more that could give one."""

    reason: str
    begun_at: int | None = None
    """Where the log ended when the broker began the commit; None = it has not."""


def hand_over(root: str, request: HandOver, holder: str | None) -> CommitOutcome | Unanswered:
    """What the broker says; raises the error that it answers with, StoreServedError where it takes nothing from here.

    `holder` is who has the store's lock, for texts.
    """
    try:
        connection = local_socket.connect(root, SILENCE_SECONDS)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        return Unanswered(local_socket.why_none_listens(root, error))
    except OSError as error:
        raise StoreServedError(root, f"its socket is not reached: {error.strerror or error}", holder) from error
    begun: int | None = None
    answer: CommitOutcome | StorageError | OSError | None = None
    with connection:
        user = local_socket.peer_user(connection)
        if not local_socket.is_own_user(user):
            reason = f"it is run by user {user}, and this process by user {os.geteuid()}"
            raise StoreServedError(root, reason, holder)
        try:
            _send(connection, request)
            while answer is None:
                document = local_socket.receive_frame(connection, ANSWER_BYTES_MOST, SILENCE_SECONDS)
                if document is None:
                    return Unanswered("it has ended amid the batch", begun)
                now = begun_at(document)
                begun = begun if now is None else now
                answer = read_answer(document)
        except TimeoutError as error:
            reason = f"it has said nothing for {SILENCE_SECONDS:.0f} s; {_IN_DOUBT}"
            raise StoreServedError(root, reason, holder) from error
        except (FrameError, ValueError) as error:
            reason = str(error) if begun is None else f"{error}; {_IN_DOUBT}"
            raise StoreServedError(root, reason, holder) from error
        except ConnectionError as error:
            return Unanswered(f"it has ended amid the batch ({error})", begun)
    if isinstance(answer, CommitOutcome):
        return answer
    raise _of_here(root, answer)


def _send(connection: socket.socket, request: HandOver) -> None:
    with suppress(ConnectionError):  # it may have said why
        local_socket.send_frame(connection, request_document(request), REQUEST_BYTES_MOST)


def _of_here(root: str, error: Exception) -> Exception:
    """The error with this process's name for a staged file; the broker may know ROOT by another one."""
    if isinstance(error, StagedRowsGoneError):
        _, mark, name = error.path.partition(staged_directory(""))
        if mark:
            return StagedRowsGoneError(staged_directory(root) + name, error.rows)
    return error
