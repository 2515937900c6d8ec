"""The put path's rules as data: a request, and what a broker makes of it.

Each case names the Java class and method that it was read off. They run over our handler (`test_put_cases.py`), over the Apache
broker, which must answer and store the same but where `departs` says why not (`test_put_cases_by_apache.py`), and those with a
`row` over any other way in. All of one `conf` run on one store, in any order: each case has topics of its own.
"""

from __future__ import annotations

from tests.broker.put_cases import of_batches, of_messages, of_sizes, of_transactions

CASES = [
    *of_messages.ORDINARY,
    *of_messages.QUEUES,
    *of_messages.NAMES,
    *of_messages.CREATED,
    *of_sizes.SIZES,
    *of_sizes.DELAYED,
    *of_transactions.TRANSACTIONS,
    *of_transactions.RETRIES,
    *of_batches.PERMISSIONS,
    *of_batches.BATCHES,
    *of_batches.STATICS,
]
