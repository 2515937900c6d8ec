"""A check of half messages over a store that a test holds open all the time, asking one question after the other."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from storage import Message, MessageStore
from storage.rules.half_messages import committed_messages
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.transaction import check
from storage.transaction.check import Asking, Checker
from storage.transaction.check_plan import CheckRules


def check_half_messages(
    store: MessageStore, checker: Checker, now_ms: int, *, rules: CheckRules | None = None
) -> check.CheckReport:
    """`check.check_half_messages` with this store in each of its passes."""
    return check.check_half_messages(lambda: nullcontext(store), checker, now_ms, rules=rules, asking=Asking(threads=1))


def commit_of(half: Message) -> InnerMessage:
    """What a commit of one half makes visible, as a message."""
    columns = InnerMessages.of([InnerMessage.of(half)])
    return committed_messages(columns, np.array([half.commitlog_offset])).message(0)
