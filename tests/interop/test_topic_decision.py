"""The Apache broker as judge of the topic rules: started with the settings of `topic_settings.py` and with a static topic's mapping,
it answers the requests, and makes the topics, that the cases say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from storage import open_store
from storage.rules.response_codes import ResponseCode
from storage.settings.load import parse_config
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import PERM_WRITE, TopicTable
from tests.broker.remoting_client import ask, call
from tests.broker.static_topic import HERE_LED, NOT_HERE, OTHER, TOPIC, make_static_store
from tests.broker.topic_settings import BASE, CASES, TopicCase, conf_text
from tests.spark.in_process import read_batch
from tests.support.broker_handlers import Send
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

GET_ROUTE = 105
"""Java: RequestCode.GET_ROUTEINFO_BY_TOPIC."""
LOG_FILE_SIZE, QUEUE_FILE_SIZE = (int(BASE[name]) for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"))
SETTINGS = list({tuple(case.settings.items()) for case in CASES})


def cases_of(settings: tuple[tuple[str, str], ...]) -> list[TopicCase]:
    return [case for case in CASES if tuple(case.settings.items()) == settings]


def run(oracle: Oracle, root: Path, settings: dict[str, str]) -> Iterator[RunningBroker]:
    with (
        oracle.namesrv() as name_server,
        oracle.broker(
            root,
            name_server,
            commitlog_file_size_bytes=LOG_FILE_SIZE,
            consume_queue_file_size_bytes=QUEUE_FILE_SIZE,
            **{name: value for name, value in (BASE | settings).items() if not name.startswith("mappedFile")},
        ) as running,
    ):
        yield running


@pytest.fixture(params=SETTINGS, ids=lambda settings: ",".join(name for name, _ in settings) or "none")
def broker(
    request: pytest.FixtureRequest, oracle: Oracle, tmp_path: Path
) -> Iterator[tuple[list[TopicCase], RunningBroker]]:
    """The cases of one set of settings, and a broker that has them and the cases' topics."""
    cases = cases_of(request.param)
    root = tmp_path / "store"
    with open_store(root, config=parse_config(conf_text({}).encode()), read_only=False, create=True) as store:
        for case in cases:
            if case.entry is not None:
                store.save_topic(case.entry)
    for running in run(oracle, root, dict(request.param)):
        yield cases, running


def test_the_broker_answers_and_makes_topics_as_the_cases_say(
    broker: tuple[list[TopicCase], RunningBroker],
) -> None:
    cases, running = broker
    answers = {case.name: ask(running.address, Send(topic=case.topic, body=b"row"))[0] for case in cases}
    path = running.store / "config" / TOPICS_FILE  # a broker that makes no topic writes none
    topics = TopicTable.load(path.read_text("utf-8")).topics if path.exists() else {}
    for case in cases:
        answer = answers[case.name]
        assert (case.name, answer.code, answer.remark) == (case.name, case.code, case.remark)
        assert (case.name, topics.get(case.topic)) == (case.name, case.entry or case.made_by_request)


def test_a_route_shows_no_queue_to_write_where_our_rows_are_refused_and_requests_are_not(
    broker: tuple[list[TopicCase], RunningBroker],
) -> None:
    """BrokerController.registerBrokerAll: what a producer is told, which then sends nothing."""
    cases, running = broker
    for case in cases:
        if case.entry is not None and case.code == ResponseCode.SUCCESS:
            ask_route = partial(call, running.name_server, GET_ROUTE, {"topic": case.topic})
            wait_until(lambda: ask_route().code == ResponseCode.SUCCESS, f"a route of {case.topic}")  # noqa: B023
            (perm,) = re.findall(rb'"perm":([0-9])', ask_route().body)
            assert (case.name, bool(int(perm) & PERM_WRITE)) == (case.name, case.row_refusal is None)


def test_the_broker_puts_a_static_topics_messages_where_our_rows_go(oracle: Oracle, tmp_path: Path) -> None:
    root = tmp_path / "broker" / "store"
    root.parent.mkdir()
    (root.parent / "broker.conf").write_text(conf_text({}))
    make_static_store(root)
    for running in run(oracle, root, {}):
        placed, answered = {}, {}
        for logical in HERE_LED:
            answer, _ = ask(running.address, Send(topic=TOPIC, body=f"{logical}".encode(), queue_id=logical))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert answer.fields["queueId"] == str(logical)
            answered[f"{logical}".encode()] = logical, int(answer.fields["queueOffset"])
        for logical in NOT_HERE:
            answer, _ = ask(running.address, Send(topic=TOPIC, body=b"x", queue_id=logical))
            assert (logical, answer.code) == (logical, ResponseCode.NOT_LEADER_FOR_QUEUE)
        with open_store(running.store, config=str(running.conf)) as store:
            for physical in HERE_LED.values():
                (message,) = store.get(TOPIC, physical, 0).messages
                placed[int(message.body)] = physical
        assert placed == HERE_LED
        with pytest.warns(RuntimeWarning, match=OTHER):
            rows = read_batch(running.store, topic=TOPIC, logical="true", conf=str(running.conf))
        assert {row["body"]: (row["queue_id"], row["queue_offset"]) for row in rows} == {
            body: place for body, place in answered.items() if place[1] >= 0
        }, "the source shows what the broker answered, but for the queue whose place is not decided"
