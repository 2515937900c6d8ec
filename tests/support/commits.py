"""What a commit of one half makes visible, as a message."""

from __future__ import annotations

import numpy as np

from storage import Message
from storage.rules.half_messages import committed_messages
from storage.rules.inner_messages import InnerMessage, InnerMessages


def commit_of(half: Message) -> InnerMessage:
    """The one row of its columns."""
    columns = InnerMessages.of([InnerMessage.of(half)])
    return committed_messages(columns, np.array([half.commitlog_offset])).message(0)
