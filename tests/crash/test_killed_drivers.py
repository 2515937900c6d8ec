"""A streaming query from store to store whose driver is killed at some steps, and goes on from its checkpoint.

`make test-crash` kills at each step with either victim.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random, randrange

import pytest

from storage import open_store
from tests.crash.driver_chain import (
    FAILPOINTS,
    QUEUES,
    ROWS_AT_FAILPOINT,
    TOPIC,
    Death,
    DriverChain,
    Row,
    Tally,
    Victim,
    compare,
    rows_by_queue,
)
from tests.support.java_broker import needed_oracle

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]

DEATHS = 6  # each costs the start of a JVM


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> DriverChain:
    """So many failpoints have killed: in turns the whole driver, and the process that came to it."""
    seed = randrange(1 << 32)
    print(f"seed {seed}")
    random = Random(seed)
    made = DriverChain(tmp_path_factory.mktemp("chain"), random)
    victims = [(Victim.ALL, Victim.WORKER)[number % 2] for number in range(DEATHS)]
    points = random.sample(FAILPOINTS, DEATHS)
    deaths = [Death.at(point, victim, random) for point, victim in zip(points, victims, strict=True)]
    assert all(was_killed for _, was_killed in made.die_in_turn(deaths))
    return made


def test_every_row_is_there_once_and_in_order(chain: DriverChain) -> None:
    chain.assert_sound()
    assert chain.row_count == ROWS_AT_FAILPOINT * DEATHS


def test_a_row_twice_one_lost_and_one_out_of_order_are_seen() -> None:
    one, two, three, four = (Row(bytes([number]), None, (), None) for number in range(4))
    source = [[one, two, three, four]]
    assert compare(source, [[one, two]], finished=False) == Tally(2, 0, 0, 0, 0)
    assert compare(source, [[one, two]], finished=True) == Tally(2, 0, 2, 0, 0)
    assert compare(source, [[one, two, one, two, three, four]], finished=True) == Tally(6, 2, 0, 0, 0)
    assert compare(source, [[one, three]], finished=False) == Tally(2, 0, 1, 0, 0)
    assert compare(source, [[two, one, three, four]], finished=True) == Tally(4, 0, 0, 1, 0)
    assert compare(source, [[one._replace(keys=("other",)), two]], finished=False) == Tally(2, 0, 1, 0, 1)


@pytest.mark.interop
def test_apaches_own_classes_find_every_row(chain: DriverChain, tmp_path: Path) -> None:
    dumped = needed_oracle(tmp_path).dump(chain.sink, chain.conf)
    found: list[list[str]] = [[] for _ in range(QUEUES)]
    for line in dumped:
        if line["type"] == "message" and line["topic"] == TOPIC:
            found[line["queueId"]].append(line["bodySha256"])
    with open_store(chain.source) as source:
        expected = [[hashlib.sha256(row.body).hexdigest() for row in rows] for rows in rows_by_queue(source)]
    assert found == expected
