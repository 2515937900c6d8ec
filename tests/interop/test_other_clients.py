"""Clients of other languages and releases at our name server and broker: Apache's Go and C++ clients, ali-ons of Node,
rocketmq-client-rust, Aliyun's Java client, and Java clients back to 4.3.

Each program (tests/support/client_programs.py) sends in every way, consumes in every way, pulls, and ends transactions. What all of
them must have seen is the same, and what they say is held against the broker's store. SPARK_MQ_TEST_SERVERS=apache asks the same of
Apache's servers.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.errors import AccessDeniedError
from spark_mq.client.message import decode_records
from spark_mq.client.pulls import Pull, PullStatus, subscription
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.remoting import MessageQueue
from tests.support.client_programs import (
    CPP,
    GO,
    NEW_GO,
    NODE,
    OLD_CPP,
    OLD_GO,
    ONS,
    RUST,
    ClientProgram,
    NotHereError,
    java,
)
from tests.support.java_broker import JavaClient, Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

USER = Credentials("application", "applications-secret")
OURS, SETTINGS = True, {"enablePropertyFilter": "true"}
NAMES = [
    *(f"sync-{number}" for number in range(12)),
    *(f"async-{number}" for number in range(6)),
    *(f"oneway-{number}" for number in range(3)),
    *(f"batch-{number}" for number in range(4)),
    *(f"ordered-{number}" for number in range(6)),
    *("large", "delayed"),
]
PROGRAMS = [
    GO,
    NEW_GO,
    *OLD_GO,
    CPP,
    OLD_CPP,
    NODE,
    RUST,
    ONS,
    *(
        java(version)
        for version in ("4.3.0", "4.5.2", "4.7.1", "4.8.0", "4.9.7", "5.0.0", "5.1.4", "5.2.0", "5.3.3", "5.4.0")
    ),
]


@pytest.fixture(scope="module")
def guarded(servers: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that knows one user, who may do everything; requests without his signature are refused."""
    if not servers.is_ours:
        pytest.skip("Apache's broker needs more settings for its access control")
    acl = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": USER.access_key, "password": USER.secret_key}),
    }
    store = tmp_path_factory.mktemp("guarded-") / "store"
    with servers.namesrv() as name_server, servers.broker(store, name_server, **SETTINGS, **acl) as running:
        yield running


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_client_does_all_that_it_can_at_our_servers(
    program: ClientProgram, servers: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    go_round(program, servers, broker, tmp_path)


@pytest.mark.parametrize("program", [GO, CPP, NODE, RUST, ONS], ids=lambda program: program.name)
def test_a_client_that_signs_does_the_same_at_a_broker_with_access_control(
    program: ClientProgram, servers: Oracle, guarded: RunningBroker, tmp_path: Path
) -> None:
    unsigned = Admin(ClientSettings((guarded.name_server,)))
    with unsigned, pytest.raises(AccessDeniedError):
        unsigned.runtime_info(guarded.address)
    go_round(program, servers, guarded, tmp_path, USER)


def go_round(
    program: ClientProgram, servers: Oracle, broker: RunningBroker, directory: Path, user: Credentials | None = None
) -> None:
    """One program's round, and what must come of it."""
    topic = f"Round-{program.name.replace('.', '_')}"
    more = {"sql": "true"} if program in (GO, NEW_GO, RUST) else {}
    settings = ClientSettings((broker.name_server,), credentials=user)
    if user is not None:
        more |= {"accessKey": user.access_key, "secretKey": user.secret_key}
    if "topics" in program.lacks:
        with Admin(settings) as admin:
            names = [topic, f"{topic}Tx"]
            for name in names:
                admin.create_topic(NewTopic(name, 4, 4))
            wait_until(lambda: set(names) <= set(admin.topics()), "the topics are registered")
    try:
        client = program.run(servers, broker, directory / "round.jsonl", topic, **more)
    except NotHereError as absent:
        pytest.skip(str(absent))
    assert client.lines("failed") == []
    sent = {line["name"]: line for line in client.lines("sent") if line["how"] != "transaction"}
    names = [name for name in NAMES if name.partition("-")[0] not in program.lacks]
    assert sorted(sent) == sorted(names)
    assert {line["status"] for line in sent.values() if "status" in line} <= {"SEND_OK"}
    if not program.has_batches:
        names = [*(name for name in names if not name.startswith("batch")), ""]
    stored = records_of(settings, topic)
    assert sorted(record["name"] for record in stored) == sorted(names)
    places = {record["name"]: (record["queueId"], record["queueOffset"]) for record in stored}
    for name, line in sent.items():
        if "queueOffset" in line and name != "delayed" and name in places:
            assert line["queueOffset"] == places[name][1]
            assert not program.tells_queues or line["queueId"] == places[name][0]
    for kind in ("batch", "ordered"):
        assert len({queue_id for name, (queue_id, _) in places.items() if name.startswith(f"{kind}-")}) <= 1
    consumed(program, client, sent, places)
    if program.has_transactions:
        assert Counter(line["name"] for line in got(client, "transactions")) == Counter(["commit", "unknown"])
        assert Counter(line["name"] for line in client.lines("asked")) == Counter(["unknown"])
        assert sorted(record["name"] for record in records_of(settings, f"{topic}Tx")) == ["commit", "unknown"]
    ends = Counter(record["queueId"] for record in stored)
    facts = {line["queueId"]: line for line in client.lines("fact") if line["name"] == "queue"}
    assert facts.keys() == (set() if "pull" in program.lacks else ends.keys())
    with Admin(settings) as admin:
        for queue_id, count in ends.items():
            queue = MessageQueue(topic, "broker-lab", queue_id)
            # the delayed one may have come after the pull
            assert queue_id not in facts or count - 1 <= facts[queue_id]["max"] <= count
            for by in ("all", "orderly"):
                assert admin.group_offset(f"g-{topic}-{by}", queue) == count, (by, queue_id)


def consumed(
    program: ClientProgram, client: JavaClient, sent: dict[str, Any], places: dict[str, tuple[int, int]]
) -> None:
    """Every consumer got what it was to get, from where it lies, once; what failed came again."""
    times = Counter((line["name"], line["times"]) for line in got(client, "all"))
    assert set(times.values()) == {1}
    assert {name for name, _ in times} == set(places)
    assert {count for name, count in times if name == "sync-5"} == {0, 1}
    if program.fails_alone:
        assert set(times) == {*((name, 0) for name in places), ("sync-5", 1)}
    for line in got(client, "all"):
        assert line["name"] not in sent or line["bytes"] == sent[line["name"]]["bytes"]
        assert line["times"] == 1 or (line["queueId"], line["queueOffset"]) == places[line["name"]]
    tagged = [f"sync-{number}" for number in range(12) if number % 3 != 1]
    assert Counter(line["name"] for line in got(client, "tags")) == Counter(tagged)
    assert {line["tags"] for line in got(client, "tags")} == {"TagA", "TagC"}
    in_order: dict[int, list[int]] = defaultdict(list)
    for line in got(client, "orderly"):
        in_order[line["queueId"]].append(line["queueOffset"])
    assert all(offsets == list(range(len(offsets))) for offsets in in_order.values())
    assert sum(map(len, in_order.values())) == len(places)
    if "pull" not in program.lacks:
        assert places.keys() - {"delayed"} <= {line["name"] for line in got(client, "pull")}
    if of_sql := got(client, "sql"):
        assert Counter(line["name"] for line in of_sql) == Counter(set(NAMES[:12]) - set(tagged))


def got(client: JavaClient, by: str) -> list[dict[str, Any]]:
    """What one consumer was handed."""
    return [line for line in client.lines("got") if line["by"] == by]


def records_of(settings: ClientSettings, topic: str) -> list[dict[str, Any]]:
    """What the broker holds of a topic, by our own pulls."""
    found = []
    with Admin(settings) as admin:
        for queue, end in admin.max_offsets(topic).items():
            offset = 0
            while offset < end:
                pull = Pull(queue, offset, subscription(topic, "*", 0), suspend_ms=0, sends_subscription=True)
                pulled = admin.pull(pull, "Looking")
                assert pulled.status is PullStatus.FOUND
                for record in decode_records(pulled.records):
                    body = record.plain_body
                    name = body.split(b":")[0].split(b"\0")[0].decode()
                    found.append({"name": name, "queueId": record.queue_id, "queueOffset": record.queue_offset})
                offset = pulled.next_offset
    return found
