"""The orders of storage/README.md as the engine's callables make them, with who notices each fault in them. Read `steps.py` first."""

from __future__ import annotations

from tests.torture.orders import of_batches, of_duties, of_files, of_opening, of_puts, of_waiting
from tests.torture.steps import Order

ORDERS: tuple[Order, ...] = (
    *of_opening.ORDERS,
    *of_waiting.ORDERS,
    *of_puts.ORDERS,
    *of_batches.ORDERS,
    *of_duties.ORDERS,
    *of_files.ORDERS,
)
