"""A query's position as a consumer group's (option commitOffsets), handed to the broker of ours that has the store open.

    query   {"version": 1, "directory": [device, inode], "group": …, "offsets": [[topic, queue id, next offset], …]}
    broker  {"done": [false, how many]}  or  {"error": …}, and the broker hangs up

They are in the broker's memory and in consumerOffset.json when it answers. Everything is looked through before it is used: an error is
a ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import ANSWER_BYTES_MOST, REQUEST_BYTES_MOST, FrameError
from spark_mq.hand_over.messages import VERSION, read_answer
from storage.batch.commit import CommitOutcome
from storage.errors import StoreServedError

_SILENCE_SECONDS = 2.0
"""A query waits for so little so long; a batch has more at stake."""
_OFFSETS = "offsets"

Offsets = Mapping[tuple[str, int], int]
"""Next offsets by (topic, queue id)."""


class HandedOffsets(NamedTuple):
    """What a query asks a broker to store."""

    group: str
    offsets: Offsets
    directory: tuple[int, int]
    """Device and inode of the ROOT that the query reads."""


# The broker's side


def are_offsets(document: Mapping[str, Any]) -> bool:
    """Whether a request is one of these, and no batch."""
    return _OFFSETS in document


def read_offsets(document: Mapping[str, Any]) -> HandedOffsets:
    """Raises ValueError for what is no request of this version."""
    try:
        version, group, (device, inode) = document["version"], document["group"], document["directory"]
        listed = [(topic, queue_id, offset) for topic, queue_id, offset in document[_OFFSETS]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these are no offsets to be handed over: {type(error).__name__} {error}") from error
    if version != VERSION:
        raise ValueError(f"version {version!r:.20} is not known, {VERSION} is")
    numbers = [device, inode, *(number for _, *both in listed for number in both)]
    texts = [group, *(topic for topic, _, _ in listed)]
    if any(type(number) is not int or number < 0 for number in numbers) or any(type(text) is not str for text in texts):
        raise ValueError("a group, and of each queue its topic, number and next offset are expected")
    return HandedOffsets(group, {(topic, queue_id): offset for topic, queue_id, offset in listed}, (device, inode))


# The query's side


def hand_offsets(root: str, group: str, offsets: Offsets, holder: str | None) -> None:
    """Returns when the broker has stored them. `holder` is who has the store's lock, for texts.

    Raises the error that it answers with, StoreServedError where it takes nothing from here.
    """
    document = {
        "version": VERSION,
        "directory": list(local_socket.directory_identity(root)),
        "group": group,
        _OFFSETS: [[topic, queue_id, offset] for (topic, queue_id), offset in offsets.items()],
    }
    try:
        with local_socket.connect(root, _SILENCE_SECONDS) as connection:
            if not local_socket.is_own_user(user := local_socket.peer_user(connection)):
                reason = f"it is run by user {user}, and this process by user {os.geteuid()}"
                raise StoreServedError(root, reason, holder)
            local_socket.send_frame(connection, document, REQUEST_BYTES_MOST)
            said = local_socket.receive_frame(connection, ANSWER_BYTES_MOST, _SILENCE_SECONDS)
        if said is None:
            raise StoreServedError(root, "it has ended before it answered", holder)
        answer = read_answer(said)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise StoreServedError(root, local_socket.why_none_listens(root, error), holder) from error
    except (OSError, FrameError, ValueError) as error:
        raise StoreServedError(root, f"it has not taken the group's offsets: {error}", holder) from error
    if isinstance(answer, Exception):
        raise answer
    if not isinstance(answer, CommitOutcome):
        raise StoreServedError(root, "its answer is none", holder)
