"""alter-topic and delete-topic: what is named changes, the rest stays; what is RocketMQ's own is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from spark_mq.cli import app, topic_changes
from spark_mq.cli.places import topic_entry
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.errors import ClientError, TopicRouteNotFoundError
from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import Producer
from spark_mq.command_options import Connection
from spark_mq.lag.figures import LagReport
from spark_mq.remoting.routes import BrokerData, ClusterInfo
from spark_mq.terminal import BUSY, CommandError
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import is_system_topic
from storage.tables.document import TOPICS_FILE
from storage.tables.offline_changes import write_group_offsets
from storage.tables.topics import MAPPINGS, MAPPINGS_FILE, TopicConfig, TopicTable
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.support.commands import json_of, run
from tests.support.java_broker import wait_until


def topics_of(root: Path) -> dict[str, TopicConfig]:
    return dict(TopicTable.load((root / "config" / TOPICS_FILE).read_text("utf-8")).topics)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_store(path, read_only=False, create=True) as store:
        store.put("orders", b"x", queue_id=0, queue_count=4)
    return path


# In a store


def test_what_is_named_changes_and_the_rest_of_the_entry_stays(root: Path) -> None:
    before = topics_of(root)
    (done,) = json_of("alter-topic", root, "orders", "--perm", "4")
    assert done == {
        "store": str(root),
        "topic": "orders",
        "changed": True,
        "before": {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6},
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 4,
    }
    assert topics_of(root) == before | {"orders": replace(before["orders"], perm=4)}
    run("alter-topic", root, "orders", "--read-queues", "8", "--write-queues", "2")
    changed = topics_of(root)["orders"]
    assert (changed.read_queue_count, changed.write_queue_count, changed.perm) == (8, 2, 4)
    assert "is so already" in run("alter-topic", root, "orders", "--perm", "4")
    with open_store(root) as store:
        assert store.max_offset("orders", 0) == 1


def test_a_change_that_names_nothing_or_two_things_is_refused(root: Path) -> None:
    assert "say what to change" in run("alter-topic", root, "orders", exit_code=2)
    refused = run("alter-topic", root, "orders", "--queues", "3", "--read-queues", "2", exit_code=2)
    assert "give --queues, or --read-queues and --write-queues" in refused


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "%RETRY%group", "rmq_sys_wheel_timer"])
def test_rocketmqs_own_topics_are_not_changed(root: Path, topic: str) -> None:
    before = (root / "config" / TOPICS_FILE).read_bytes()
    assert "is illegal" in run("alter-topic", root, topic, "--perm", "0", exit_code=1)
    assert (root / "config" / TOPICS_FILE).read_bytes() == before


def test_a_topic_that_is_not_there_is_named_with_the_nearest_that_users_have(root: Path) -> None:
    refused = run("alter-topic", root, "order", "--perm", "4", exit_code=1)
    assert "there is no topic order" in refused
    assert "did you mean orders?" in refused


@pytest.mark.parametrize("command", [["dump"], ["topics"], ["lag"], ["offset-by-time", "--time", "0"]])
@pytest.mark.parametrize("name", ["TBW103", "TBW10", "RMQ_SYS_TRACE_TOPICS", "SCHEDULE_TOPIC", "BenchmarkTests"])
def test_no_system_topic_is_suggested(pristine_store: Any, command: list[str], name: str) -> None:
    refused = run(command[0], pristine_store("clean").root, "--topic", name, *command[1:], exit_code=1)
    assert f"there is no topic {name}" in refused
    suggested = re.findall(r"did you mean (\S+)\?", refused)
    assert not [one for one in suggested if is_system_topic(one, broker_name="broker-lab", cluster_name="LabCluster")]


def test_queues_are_not_taken_away_before_they_can_be_read_to_their_end(root: Path) -> None:
    before = topics_of(root)["orders"]
    fewer = str(before.read_queue_count - 1)
    assert "lower --write-queues first" in run("alter-topic", root, "orders", "--queues", fewer, exit_code=1)
    assert topics_of(root)["orders"] == before
    run("alter-topic", root, "orders", "--write-queues", fewer)
    run("alter-topic", root, "orders", "--read-queues", fewer)
    assert topics_of(root)["orders"].read_queue_count == int(fewer)


@pytest.mark.parametrize(
    ("shape", "change", "rule"),
    [
        ((8, 8), ["--read-queues", "4"], "lower --write-queues first"),
        ((8, 8), ["--read-queues", "4", "--write-queues", "4"], "lower --write-queues first"),
        ((8, 8), ["--read-queues", "0", "--write-queues", "0"], "lower --write-queues first"),
        ((8, 4), ["--read-queues", "3"], "lower --write-queues first"),
        ((8, 8), ["--write-queues", "9"], "give --read-queues, too"),
        ((8, 4), ["--read-queues", "4", "--write-queues", "5"], "give --read-queues, too"),
        ((4, 8), ["--write-queues", "9"], "give --read-queues, too"),
        ((8, 4), ["--read-queues", "4"], None),
        ((8, 4), ["--read-queues", "4", "--write-queues", "2"], None),
        ((8, 4), ["--write-queues", "8"], None),
        ((8, 8), ["--read-queues", "9", "--write-queues", "9"], None),
        ((4, 8), ["--read-queues", "6"], None),
        ((4, 8), ["--perm", "4"], None),
    ],
)
def test_no_queue_is_written_that_is_not_read(
    root: Path, shape: tuple[int, int], change: list[str], rule: str | None
) -> None:
    before = replace(topics_of(root)["orders"], read_queue_count=shape[0], write_queue_count=shape[1])
    with open_store(root, read_only=False) as store:
        store.save_topic(before)
    answer = run("alter-topic", root, "orders", *change, exit_code=0 if rule is None else 1)
    assert rule is None or rule in answer
    assert (topics_of(root)["orders"] == before) == (rule is not None)


def test_the_queues_of_an_ordered_topic_are_not_changed_here(root: Path) -> None:
    with open_store(root, read_only=False) as store:
        store.save_topic(replace(topics_of(root)["orders"], order=True))
    assert "is ordered" in run("alter-topic", root, "orders", "--queues", "9", exit_code=1)
    run("alter-topic", root, "orders", "--perm", "4")
    assert topics_of(root)["orders"].order


def offsets_of(root: Path) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads((root / "config" / "consumerOffset.json").read_text("utf-8"))[
        "offsetTable"
    ]
    return table


def note_offsets(root: Path, **offsets: int) -> None:
    """Group G has consumed so much of queue 0 of these topics."""
    places = {(topic, 0): offset for topic, offset in offsets.items()}
    write_group_offsets(str(root), "G", places, now_ms=1, file_system=LocalFileSystem())


def test_a_topic_of_a_store_is_deleted_with_its_queues_and_the_offsets_in_it(root: Path) -> None:
    with open_store(root, read_only=False) as store:
        store.put("kept", b"y", queue_id=0, queue_count=1)
    note_offsets(root, orders=1, kept=1)
    assert "say --yes" in run("delete-topic", root, "orders", exit_code=2)
    assert "orders" in topics_of(root)
    done = json_of("delete-topic", root, "orders", "--yes")
    assert done == {"topic": "orders", "store": str(root), "messages": 1}
    assert "orders" not in topics_of(root)
    assert not (root / "consumequeue" / "orders").exists()
    assert offsets_of(root) == {"kept@G": {"0": 1}}
    with open_store(root, read_only=False) as store:
        assert store.lowered == ()
        assert store.topics() == ["kept"]
        assert store.put("orders", b"new", queue_id=0).queue_offset == 0, "it begins anew"
    assert "there is no topic gone" in run("delete-topic", root, "gone", "--yes", exit_code=1)


def test_who_is_asked_about_a_store_learns_what_is_unread(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note_offsets(root, orders=0)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda text, **_: asked.append(text))
    with pytest.raises(CommandError, match="nothing was changed"):
        topic_changes._delete_in_store(str(root), "orders", None, 0, is_sure=False)
    assert asked == ["delete topic orders, with 1 messages in its queues?"]
    assert "G has 1 unread messages there" in " ".join(capsys.readouterr().out.split())
    assert "orders" in topics_of(root)


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX"])
def test_rocketmqs_own_topics_are_not_deleted(root: Path, topic: str) -> None:
    with open_store(root, read_only=False) as store:
        store.save_topic(TopicConfig(topic, 1, 1))
    before = topics_of(root)
    assert "RocketMQ's own" in run("delete-topic", root, topic, "--yes", exit_code=1)
    assert topics_of(root) == before


def test_a_static_topic_is_not_deleted_at_one_of_its_brokers(root: Path) -> None:
    mapping = {
        "topic": "orders",
        "bname": "b",
        "totalQueues": 1,
        "epoch": 1,
        "scope": "__global__",
        "hostedQueues": {},
    }
    table = {MAPPINGS: {"orders": mapping}}
    (root / "config" / MAPPINGS_FILE).write_text(json.dumps(table), "utf-8")
    assert "topic orders is static" in run("delete-topic", root, "orders", "--yes", exit_code=1)
    assert "orders" in topics_of(root)


def test_a_topic_of_a_store_that_a_broker_has_open_is_not_deleted(root: Path) -> None:
    with open_store(root, read_only=False, holder="broker"):
        told = run("delete-topic", root, "orders", "--yes", "--lock-timeout", "1ms", exit_code=BUSY)
        assert "is locked by another writer" in told
    assert "orders" in topics_of(root)


# In a cluster


class TwoClusters:
    """A cluster's place: topic T at broker a of cluster one and b of cluster two, U at a alone."""

    settings = None

    def __init__(self, *_: object) -> None:
        self.admin = self

    deleted: ClassVar[list[tuple[str, str | None]]] = []

    async def cluster_info(self) -> ClusterInfo:
        names = {"one": "a", "two": "b"}
        table = {
            name: BrokerData(cluster=cluster, broker_name=name, broker_addresses={0: name})
            for cluster, name in names.items()
        }
        by_cluster = {cluster: (name,) for cluster, name in names.items()}
        return ClusterInfo(broker_address_table=table, cluster_address_table=by_cluster)

    async def delete_topic(self, topic: str, *, cluster: str | None) -> None:
        self.deleted.append((topic, cluster))

    def topic_entries(self, topic: str | None = None) -> list[dict[str, Any]]:
        assert topic is not None, "the brokers of other topics are not asked"
        return [
            topic_entry(each, broker, None, {0: (0, end)})
            for each, broker, end in (("T", "a", 3), ("T", "b", 4), ("U", "a", 1))
            if each == topic
        ]

    def known_topics(self) -> list[str]:
        return ["T", "U"]

    def is_system_topic(self, _: str) -> bool:
        return False

    def at_brokers(self, name: str) -> str:
        return name

    def close(self) -> None:
        pass


def test_a_topic_that_is_deleted_in_one_cluster_is_not_said_to_be_deleted_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_mq.cli.live_place.LivePlace", TwoClusters)
    monkeypatch.setattr(TwoClusters, "deleted", [])
    in_two = ("--cluster", "two", "--yes", "-n", "127.0.0.1:1")
    assert json_of("delete-topic", "T", *in_two) == {"topic": "T", "brokers": ["b"], "messages": 4}
    assert "no broker of cluster two has topic U" in run("delete-topic", "U", *in_two, exit_code=1)
    assert TwoClusters.deleted == [("T", "two")]


def test_who_is_asked_learns_whose_unread_messages_are_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lag:
        def __init__(self, _: object, *, cluster: str, **__: object) -> None:
            assert cluster == "one"

        def close(self) -> None:
            pass

        def look(self, keep: object) -> LagReport:
            return LagReport(1, (), (ClientError("broker b does not answer"),))

    monkeypatch.setattr("spark_mq.lag.of_cluster.ClusterLag", Lag)
    monkeypatch.setattr("spark_mq.cli.live_place.LivePlace", TwoClusters)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    with pytest.raises(CommandError, match="nothing was changed"):
        topic_changes._delete_at_brokers(Connection(name_server="127.0.0.1:1"), "T", "one", is_sure=False)
    told = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert "broker b does not answer; how many messages are unread there is not known" in told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path_factory.mktemp("topics")) as running:
        yield running


@pytest.mark.slow
def test_a_topic_of_a_cluster_is_changed_and_then_deleted(cluster: OwnCluster) -> None:
    at = ("-n", cluster.name_server)
    with Admin(cluster.settings) as admin:
        admin.create_topic(NewTopic("Changing", 2, 2, attributes={"message.type": "FIFO"}))
        wait_until(lambda: "Changing" in admin.topics(), "the topic is registered")
        (done,) = json_of("alter-topic", "Changing", "--queues", "3", *at)
        assert (done["broker_name"], done["changed"], done["read_queue_nums"]) == ("own", True, 3)
        (found,) = admin.topic_config("Changing").values()
        assert (found.read_queue_count, found.write_queue_count, found.perm) == (3, 3, 6)
        assert found.attributes == {"message.type": "FIFO"}, "what is not named stays"
        with Producer(cluster.settings, "Senders") as producer:
            producer.send(Message("Changing", b"x"), MessageQueue("Changing", "own", 2))
        admin.create_topic(NewTopic("ns%Changing", 2, 2))
        wait_until(lambda: "ns%Changing" in admin.topics(), "the topic is registered")
        (named,) = json_of("alter-topic", "Changing", "--queues", "3", "--namespace", "ns", *at)
        assert (named["topic"], named["changed"]) == ("Changing", True), "a namespace is no part of a name"
        assert admin.topic_config("ns%Changing")["own"].read_queue_count == 3
        assert "say --yes" in run("delete-topic", "Changing", *at, exit_code=2)
        assert "Changing" in admin.topics()
        done = json_of("delete-topic", "Changing", "--yes", *at)
        assert done == {"topic": "Changing", "brokers": ["own"], "messages": 1}
        with pytest.raises(TopicRouteNotFoundError):
            admin.route("Changing")
        assert "there is no topic Changing" in run("delete-topic", "Changing", "--yes", *at, exit_code=1)


@pytest.mark.slow
def test_a_system_topic_of_a_cluster_is_refused(cluster: OwnCluster) -> None:
    at = ("-n", cluster.name_server)
    for topic in ("TBW102", "own", "DefaultCluster"):
        assert "RocketMQ's own" in run("delete-topic", topic, "--yes", *at, exit_code=1)
        assert "is illegal" in run("alter-topic", topic, "--perm", "4", *at, exit_code=1)


@pytest.mark.slow
def test_lag_and_report_of_a_cluster_have_what_the_broker_holds(cluster: OwnCluster, tmp_path: Path) -> None:
    at = ("-n", cluster.name_server)
    cluster.make_topic("Reported", 1)
    lines = "a\nb\nc\n"
    assert CliRunner().invoke(app, ["produce", "--topic", "Reported", *at], input=lines).exit_code == 0
    consumed = ["consume", "--topic", "Reported", "--group", "Readers", "--limit", "1", *at, "-f", r"%t:%o:%s\n"]
    assert run(*consumed) == "Reported:0:a\n"
    (line,) = [each for each in json_of("lag", *at, "--topic", "Reported") if each["group"] == "Readers"]
    assert (line["lag"], line["unknown_queues"]) == (2, 0)
    assert line["oldest_unread_ms"] >= 0
    assert run("lag", *at, "--topic", "Reported", "--fail-above", "1", exit_code=1)
    page = tmp_path / "report.html"
    run("report", *at, "-o", page)
    text = page.read_text("utf-8")
    assert "Reported" in text
    assert "Readers" in text
    assert cluster.address in text


@pytest.mark.slow
def test_a_broker_that_is_gone_is_never_fine(tmp_path: Path) -> None:
    """A name server forgets it at once: what is left says nothing of it."""
    with own_cluster(tmp_path) as cluster:
        at = ("-n", cluster.name_server)
        cluster.make_topic("Kept", 1)
        queue = MessageQueue("Kept", "own", 0)
        with Producer(cluster.settings, "Senders") as producer, Admin(cluster.settings) as admin:
            producer.send(Message("Kept", b"x"), queue)
            admin.create_group(SubscriptionGroupConfig("Readers"))
            admin.store_group_offset("Readers", queue, 1)
        run("lag", *at, "--fail-above", "0", "--broker", "own", "--topic", "Kept")
        assert "broker ghost" in run("lag", *at, "--broker", "own", "--broker", "ghost", exit_code=1)
        assert "no such cluster" in run("delete-topic", "Kept", "--yes", "--cluster", "none", *at, exit_code=2)
        cluster.kill()
        with Admin(cluster.settings) as admin:
            wait_until(lambda: not admin.cluster_info().broker_address_table, "the name server has forgotten it")
        assert "no broker is registered" in run("lag", *at, "--fail-above", "0", exit_code=1)
        assert "no broker is registered" in run("exporter", *at, "--once", exit_code=1)
        page = tmp_path / "report.html"
        assert "no broker is registered" in run("report", *at, "-o", page, exit_code=1)
        assert "no broker is registered" in page.read_text("utf-8")
