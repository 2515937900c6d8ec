"""Waiting for a store's lock. What it is seen by are the tests of tests/files/test_turns.py: nothing is written."""

from __future__ import annotations

from tests.torture.steps import Order, Step

_HEADING = "Waiting for the lock (`files/lock.py`)"
_DISK = "storage.files.local_file_system"
_TURNS = "storage.files.lock"
_TURN = f"{_TURNS}:Turn"


def _is_locked(*_: object) -> bool:
    return True


def _is_door(descriptor: int, byte: int) -> bool:
    return byte == 0


def _is_ticket(descriptor: int, byte: int) -> bool:
    return byte > 0


ORDERS = (
    Order(
        _HEADING,
        f"{_DISK}:_take",
        (
            Step("those that came before looked for", f"{_TURN}.has_come", gives=_is_locked),
            Step("lock tried", f"{_DISK}:_lock", gives=_is_locked),
            Step("where that was not ours to take, a ticket taken", f"{_TURN}.queue_up"),
            Step("all of it again, every 50 ms"),
            Step("with the lock, the ticket given back", f"{_TURN}.__exit__"),
        ),
    ),
    Order(
        _HEADING,
        f"{_TURN}.queue_up",
        (
            Step("door (byte 0) shut", f"{_TURNS}:lock_byte", when=_is_door, gives=_is_locked),
            Step("the greatest ticket that is held looked for", f"{_TURNS}:_held"),
            Step("the next one locked", f"{_TURNS}:lock_byte", when=_is_ticket, gives=_is_locked),
            Step("door opened", f"{_TURNS}:_unlock", when=_is_door),
        ),
        title="Order of taking a ticket",
    ),
)
