"""The cases of `put_cases/` that a row can express, over every way into a store: equal records, or refused by the same rule.

A request is answered by a code and a row refused by a column; which column belongs to which code is said by the case.
"""

from __future__ import annotations

import pytest

from tests.broker.put_cases.case import CONFS, PutCase
from tests.broker.put_ways import ROW_CASES, Outcome, Way, assert_as_requested, by_put, by_request, by_sink

WAYS: dict[str, Way] = {"request": by_request, "put": by_put, "sink": by_sink}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Outcome]]:
    """By way, then by case."""
    return {
        name: {
            case: found
            for conf in CONFS
            for case, found in way(tmp_path_factory.mktemp(f"{name}-{conf}"), conf).items()
        }
        for name, way in WAYS.items()
    }


@pytest.mark.parametrize("case", ROW_CASES, ids=str)
@pytest.mark.parametrize("way", ["put", "sink"])
def test_a_row_becomes_what_the_request_becomes(
    outcomes: dict[str, dict[str, Outcome]], way: str, case: PutCase
) -> None:
    """Each case names its Java class and method."""
    assert_as_requested(case, outcomes["request"][case.name], outcomes[way][case.name], by_sink=way == "sink")


def test_rows_express_cases_of_every_kind() -> None:
    """Stored and refused, waiting, halves, retries and dead letters."""
    stored = {str(case.stored["topic"]) for case in ROW_CASES if "topic" in case.stored}
    special = {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "%DLQ%known", "Passed"}
    assert special <= stored
    columns = {case.refused_column for case in ROW_CASES if case.code != 0}
    assert columns == {
        *("topic", "queue_id", "keys", "body", "properties"),
        *("delay_level", "deliver_at", "retry_group", "transaction_state"),
    }
