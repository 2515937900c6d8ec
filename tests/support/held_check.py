"""A check of half messages over a store that a test holds open all the time, asking one question after the other."""

from __future__ import annotations

from contextlib import nullcontext

from storage import MessageStore
from storage.transaction import check
from storage.transaction.check import Asking, Checker
from storage.transaction.check_plan import CheckRules


def check_half_messages(
    store: MessageStore, checker: Checker, now_ms: int, *, rules: CheckRules | None = None
) -> check.CheckReport:
    """`check.check_half_messages` with this store in each of its passes."""
    return check.check_half_messages(lambda: nullcontext(store), checker, now_ms, rules=rules, asking=Asking(threads=1))
