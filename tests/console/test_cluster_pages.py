"""Every page over a cluster: our name server and our broker, each a process of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from spark_mq.cli.places import KeySearch
from spark_mq.client.admin import Admin
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.command_options import Connection
from spark_mq.console.cluster_view import ClusterViews
from spark_mq.remoting import MessageQueue
from storage.format.record import encode_offset_message_id
from storage.rules.half_messages import TransactionState
from tests.broker_server.own_cluster import OwnCluster, half_silent, own_cluster
from tests.console.small_store import OpenConsole
from tests.console.structure import Structure

pytestmark = pytest.mark.slow

COUNT = 90


class Undecided:
    """A listener that never knows."""

    def execute(self, message: object, transaction_id: str, arg: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: object) -> TransactionState:
        return TransactionState.UNKNOWN


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.make_topic("Orders", 1)
        made.make_topic("%DLQ%billing", 1)
        with Producer(made.settings, "Makers") as producer:
            for number in range(COUNT):
                tags = "open" if number % 10 == 0 else "paid"
                producer.send(Message("Orders", b"order %d" % number, tags=tags, keys=[f"order-{number}"]))
            letter = Message("%DLQ%billing", b"dead", properties={"RETRY_TOPIC": "Orders"})
            producer.hand_on(letter, MessageQueue(letter.topic, "own", 0))
            producer.send(Message("Orders", b"late", delay_level=18))
        yield made


@pytest.fixture
def client(cluster: OwnCluster, open_console: OpenConsole) -> TestClient:
    return open_console(connection=Connection(name_server=cluster.name_server), allows_changes=True)


def text_of(client: TestClient, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return Structure(answer.text).text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/", "log ends at"),
        ("/", " free of "),
        ("/topics?all=1", "SCHEDULE_TOPIC_XXXX"),
        ("/topic?name=Orders", "order 89"),
        ("/topic?name=Orders&queue=0&offset=10", "order 10"),
        ("/topic?name=Orders&queue=0&tag=open", "order 80"),
        ("/topic?name=Orders&queue=0&tag=*", "order 41"),
        ("/topic?name=Orders&key=order-17", "order 17"),
        ("/topic?name=Orders&time=-1h", "order 0"),
        ("/message?topic=Orders&broker=own&queue=0&offset=3", "order 3"),
        ("/message/related?topic=Orders&broker=own&queue=0&offset=3", "Copies"),
        ("/dead-letters", "billing"),
        ("/sinks", "path of a local store"),
    ],
)
def test_a_page_shows_what_the_cluster_has(address: str, said: str, client: TestClient) -> None:
    assert said in text_of(client, address)


def test_what_waits_at_a_delay_level_is_shown(client: TestClient) -> None:
    deadline = time.monotonic() + 30  # the broker names a level once it has saved its offset
    while "18" not in (text := text_of(client, "/timers")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert re.search(r"18\s+1\s", text)


def test_a_message_of_a_namespace_is_found_by_its_name_there(cluster: OwnCluster, open_console: OpenConsole) -> None:
    for topic in ("ns%Spaced", "ns%Origin"):
        cluster.make_topic(topic, 1)
    with Producer(cluster.settings, "Makers") as producer:
        for topic, body in (("ns%Spaced", b"the copy"), ("ns%Origin", b"the first")):
            properties = {"UNIQ_KEY": "SPACED", "RETRY_TOPIC": "ns%Origin", "KEYS": "spaced"}
            producer.hand_on(Message(topic, body, properties=properties), MessageQueue(topic, "own", 0))
    client = open_console(connection=Connection(name_server=cluster.name_server, namespace="ns"))
    for query in ("queue=0", "key=spaced", "queue=0&tag=*"):
        links = Structure(client.get(f"/topic?name=Spaced&{query}").text).links
        assert "/message?topic=Spaced&broker=own&queue=0&offset=0" in links
    here = "topic=Spaced&broker=own&queue=0&offset=0"
    assert "ns%" not in Structure(client.get(f"/message?{here}").text).text.split("Properties")[0]
    copies = Structure(client.get(f"/message/related?{here}").text)
    assert "/message?topic=Origin&broker=own&queue=0&offset=0" in copies.links


def test_an_open_transaction_is_shown(cluster: OwnCluster, client: TestClient) -> None:
    cluster.make_topic("Paid", 1)
    assert "None is open" in text_of(client, "/transactions")
    with TransactionProducer(cluster.settings, "Payers", Undecided()) as producer:
        sent = producer.send_in_transaction(Message("Paid", b"half")).sent
        assert sent.message_id in text_of(client, "/transactions")


def test_a_group_has_members_and_a_lag(cluster: OwnCluster, client: TestClient) -> None:
    pull = PullSettings(consume_from=ConsumeFrom.FIRST, auto_commit=False)
    with PullConsumer(cluster.settings, "billing", pull) as consumer:
        consumer.subscribe("Orders", "*")
        while not consumer.poll(1_000, 10):
            pass
        consumer.commit()
        client.app._app.state.console.samples.take()  # type: ignore[attr-defined]
        text = text_of(client, "/group?name=billing")
        assert re.search(r"Orders\s+own\s+0\s+\d+\s+\d+\s+\d+", text)
        with Admin(cluster.settings) as admin:
            (member,) = admin.consumer_ids("billing", "Orders")
        assert member in text
    assert "billing" in text_of(client, "/groups")


def test_an_id_that_names_a_strange_address_is_not_connected_to(client: TestClient) -> None:
    strange = encode_offset_message_id(bytes([127, 0, 0, 1]), 1, 0)
    assert "the cluster has none of that address" in text_of(client, f"/message?id={strange}", 404)


def test_a_dead_letter_is_replayed(cluster: OwnCluster, client: TestClient) -> None:
    page = client.get("/dead-letters?group=billing").text
    form = dict(re.findall(r'<input type="hidden" name="(form|group)" value="([^"]*)">', page))
    assert "would replay 1 to Orders" in client.post("/dead-letters/preview", data={**form, "again": "1"}).text
    assert client.post("/dead-letters/replay", data=form).status_code == 303
    deadline = time.monotonic() + 60
    while "Ended" not in (text := text_of(client, "/dead-letters/run")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "1 replayed" in text
    assert "dead" in text_of(client, "/topic?name=Orders")


def test_a_broker_that_does_not_answer_is_said_on_the_overview(tmp_path: Path, open_console: OpenConsole) -> None:
    with own_cluster(tmp_path) as made:
        client = open_console(connection=Connection(name_server=made.name_server, request_timeout="1s"))
        assert "no answer" not in text_of(client, "/")
        made.stop()  # one that is killed is gone from the name server, too
        assert "no answer" in text_of(client, "/")
        for address in ("/timers", "/transactions"):
            assert "has is missing here" in text_of(client, address)
        assert client.get("/static/console.css").status_code == 200


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    """A cluster of two brokers, of which one does not answer."""
    with half_silent(tmp_path_factory.mktemp("half")) as (made, _):
        yield made


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/topics", r"Orders\s+1\s+1\s"),
        ("/topic?name=Orders&key=both", "at own"),
        ("/message/related?topic=Orders&broker=own&queue=0&offset=0", r"own 0:0\s+%DLQ%billing"),
        pytest.param("/topic?name=Orders&unique=SAME", "at own", marks=pytest.mark.long),
        pytest.param("/topic?name=Orders&time=-1h", "at own", marks=pytest.mark.long),
        pytest.param("/topic?name=Orders&tag=*", "at own", marks=pytest.mark.long),
        pytest.param("/topic?name=Orders", "at own", marks=pytest.mark.long),
        pytest.param("/dead-letters", r"billing\s+%DLQ%billing\s+1\s", marks=pytest.mark.long),
        pytest.param("/dead-letters?group=billing", "1 messages in", marks=pytest.mark.long),
        pytest.param("/transactions", "own: 0", marks=pytest.mark.long),
        ("/timers", "own"),
    ],
)
def test_a_page_goes_on_without_a_broker_and_names_it(
    address: str, said: str, half: OwnCluster, open_console: OpenConsole
) -> None:
    client = open_console(connection=Connection(name_server=half.name_server, request_timeout="1s"))
    text = text_of(client, address)
    assert re.search(said, text), text
    assert re.search(r"What broker\s+silent\s+has is missing here: ", text), text


def test_a_search_waits_for_a_broker_up_to_a_bound_and_shows_what_the_others_found(half: OwnCluster) -> None:
    settings = ClientSettings((half.name_server,), request_timeout_ms=60_000)
    search = KeySearch("Orders", "both", False, 0, 2**63 - 1, 32)
    with closing(ClusterViews("half", settings)) as views, views.opened(0.5) as view:
        assert [(found.broker_name, found.message.body) for found in view.place.by_key(search)] == [("own", b"at own")]
        assert "within 0.5 s" in str(view.troubles["silent"])
        assert view.place.groups() is not None
        assert list(view.troubles) == ["silent"]


def test_what_only_the_silent_broker_knows_is_its_error(half: OwnCluster, open_console: OpenConsole) -> None:
    client = open_console(connection=Connection(name_server=half.name_server, request_timeout="1s"))
    for address in ("/topic?name=Orders&broker=silent&queue=0", "/message?topic=Orders&broker=silent&queue=0&offset=0"):
        text = text_of(client, address, 502)
        assert "there is no queue" not in text
        assert "what broker silent has cannot be shown: " in text
    assert "at own" in text_of(client, "/message?topic=Orders&broker=own&queue=0&offset=0")


def test_the_sampler_keeps_the_figures_of_the_brokers_that_answer(half: OwnCluster, open_console: OpenConsole) -> None:
    with PullConsumer(half.settings, "billing", PullSettings(auto_commit=False)) as consumer:
        consumer.assign([MessageQueue("Orders", "own", 0)])
        consumer.seek(MessageQueue("Orders", "own", 0), 0)
        consumer.commit({MessageQueue("Orders", "own", 0): 0})
    client = open_console(connection=Connection(name_server=half.name_server, request_timeout="1s"))
    client.app._app.state.console.samples.take()  # type: ignore[attr-defined]
    for address in ("/groups", "/group?name=billing"):
        text = text_of(client, address)
        assert "billing" in text
        assert "Figures are missing: no answer: " in text
    assert "what broker silent has cannot be shown: " in text_of(client, "/group?name=nobody", 502)
