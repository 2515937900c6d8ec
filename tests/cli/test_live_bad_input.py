"""A command that names a cluster which is not there, or not as it is said: a few lines, in time, and no secret in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.cli.app import COMMANDS, load_command
from spark_mq.client.errors import ResponseError
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from tests.support.planned_server import (
    Certificate,
    Peer,
    PlannedServer,
    closed_port,
    echo,
    keep_silent,
    planned_server,
)

pytestmark = pytest.mark.slow

SECRET = "correct-horse"
OF_CLUSTERS = {
    "brokers": ["brokers"],
    "consume": ["consume", "--topic", "T", "--group", "g"],
    "groups": ["groups"],
    "reset-offset": ["reset-offset", "--topic", "T", "--group", "g", "--to", "earliest"],
}
"""Commands that only a running cluster has."""
CALLS = OF_CLUSTERS | {
    "alter-topic": ["alter-topic", "T", "--perm", "4"],
    "console": ["console"],
    "create-topic": ["create-topic", "T"],
    "delete-topic": ["delete-topic", "T", "--yes"],
    "dump": ["dump", "--topic", "T"],
    "exporter": ["exporter", "--once"],
    "lag": ["lag"],
    "offset-by-time": ["offset-by-time", "--topic", "T", "--time", "2026-01-01"],
    "produce": ["produce", "--topic", "T"],
    "query": ["query", "--topic", "T", "--key", "k"],
    "report": ["report"],
    "topics": ["topics"],
}
"""Each command that speaks to a cluster, as it is called; --name-server comes behind."""


def refused(words: list[str], name_server: str, **environment: str) -> list[str]:
    """What a refused command says, with what a machine's user would have typed on the way."""
    command = [*words, "--name-server", name_server, "--request-timeout", "400ms"]
    result = CliRunner().invoke(app, command, env=environment, input="hello\n")
    assert result.exit_code == 1, result.output
    assert result.stdout == "" or words == ["brokers"]  # which shows what it knows
    assert SECRET not in result.output
    return result.stderr.splitlines()


class Cluster:
    """A name server and a broker, which say what a test plans."""

    def __init__(self, name_server: PlannedServer, broker: PlannedServer) -> None:
        self.name_server = name_server
        self.broker = broker


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The broker refuses everything with NO_PERMISSION."""

    def refuse(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, 16, "no accessKey is configured\nat org.apache"))

    with planned_server(refuse) as broker:

        def answer(peer: Peer, command: RemotingCommand) -> None:
            brokers = (BrokerData(cluster="c", broker_name="b", broker_addresses={0: broker.address}),)
            match command.code:
                case RequestCode.GET_BROKER_CLUSTER_INFO:
                    table = {"b": brokers[0]}
                    body = write_body(ClusterInfo(broker_address_table=table, cluster_address_table={"c": ("b",)}))
                case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                    body = write_body(TopicList(topics=("T",)))
                case _ if (command.ext_fields or {}).get("topic") == "T":
                    queues = (QueueData(broker_name="b", read_queue_count=1, write_queue_count=1, perm=6),)
                    body = write_body(TopicRouteData(queue_datas=queues, broker_datas=brokers))
                case _:
                    peer.send(make_response(command, 17, "No topic route info in name server for the topic: X"))
                    return
            peer.send(make_response(command, 0, None, None, body))

        with planned_server(answer) as name_server:
            yield Cluster(name_server, broker)


def test_every_command_that_takes_a_name_server_is_tried_here() -> None:
    taking = {name for name in COMMANDS if any("--name-server" in each.opts for each in load_command(name).params)}
    assert taking == set(CALLS)


@pytest.mark.parametrize("command", CALLS)
def test_a_name_server_that_is_not_there_is_named(command: str) -> None:
    address = closed_port()
    text = refused(CALLS[command], address)
    assert (
        text[0]
        .removeprefix("error: line 1: ")
        .removeprefix("error: ")
        .startswith(f"no name server answers ({address}: no connection")
    )
    assert text[1].startswith("hint: Check the addresses")


@pytest.mark.parametrize("command", CALLS)
def test_a_silent_name_server_is_waited_for_no_longer_than_the_time_out(command: str) -> None:
    with planned_server(keep_silent) as server:
        begin = time.monotonic()
        text = refused(CALLS[command], server.address)
        assert time.monotonic() - begin < 20  # one time-out is 0.4 s
    assert f"{server.address}: no answer" in text[0]


@pytest.mark.parametrize(
    "command", sorted(CALLS.keys() - {"brokers", "console", "exporter"})
)  # these show what answers
def test_a_refusal_says_host_code_and_remark_and_what_to_do(command: str, cluster: Cluster) -> None:
    text = refused([*CALLS[command], "--access-key", "alice"], cluster.name_server.address, SPARK_MQ_SECRET_KEY=SECRET)
    assert text[0].startswith("error: ")
    assert f"{cluster.broker.address} answered 16 (NO_PERMISSION) to " in text[0]
    assert text[0].endswith(": no accessKey is configured")
    assert text[1].startswith("hint: Check access key and secret key")


def test_a_broker_that_refuses_is_listed_with_dashes(cluster: Cluster) -> None:
    text = refused(["brokers"], cluster.name_server.address)
    assert text[0].startswith(f"no answer: {cluster.broker.address} answered 16 (NO_PERMISSION) to GET_BROKER_RUNTIME")


def test_a_topic_that_is_not_there_is_named_with_the_nearest() -> None:
    with planned_server(lambda peer, command: peer.send(make_response(command, 0, None, None, TOPICS))) as server:
        text = refused(["dump", "--topic", "order"], server.address)
    assert text == ["error: there is no topic order", "hint: did you mean orders?"]


TOPICS = write_body(TopicList(topics=("orders", "payments")))


def test_a_broker_in_place_of_a_name_server_is_told_apart() -> None:
    def not_mine(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, 3, f" request type {command.code} not supported"))

    with planned_server(not_mine) as server:
        text = refused(["topics"], server.address)
    assert text[0].startswith(f"error: {server.address} answered 3 (REQUEST_CODE_NOT_SUPPORTED)")
    assert text[1].startswith("hint: is a name server there?")


def test_a_broker_that_does_not_filter_by_sql_is_told_with_its_setting() -> None:
    error = ResponseError(1, "The broker does not support …", "a:10911", "CHECK_CLIENT_CONFIG (46)", "orders", "g")
    assert "enablePropertyFilter=true" in error.cure()
    assert ResponseError(1, None, "a:10911", "SEND_MESSAGE_V2 (310)").cure() == ResponseError.hint


def test_what_is_no_frame_is_told_with_its_port() -> None:
    with planned_server(lambda peer, _: peer.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        text = refused(["topics"], server.address)
    assert text[0].startswith(f"error: {server.address} sent what is no frame")
    assert "remoting port" in text[1]


def test_tls_that_only_one_side_speaks_is_told(tmp_path: Path) -> None:
    with planned_server(echo) as server:
        text = refused(["topics", "--tls"], server.address)
    assert text[0].startswith(f"error: {server.address}: TLS failed")
    certificate = Certificate(tmp_path)
    with planned_server(echo, certificate.server_context()) as server:
        text = refused(["topics", "--tls"], server.address)
        assert "certificate" in text[0]
        assert "--tls-ca-file" in text[1]
        assert server.address in refused(["topics"], server.address)[0]


def of_line(words: list[str], exit_code: int, **environment: str) -> str:
    result = CliRunner().invoke(app, words, env=environment)
    assert result.exit_code == exit_code, result.output
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("command", OF_CLUSTERS)
def test_a_command_of_clusters_says_what_it_needs(command: str) -> None:
    assert "give the address of a name server" in of_line(CALLS[command], 2)


@pytest.mark.parametrize(
    "command", sorted(CALLS.keys() - OF_CLUSTERS - {"alter-topic", "create-topic", "delete-topic"})
)
def test_stores_or_a_cluster_are_named_never_both(command: str, tmp_path: Path) -> None:
    assert "give PATH, or the address of a name server" in of_line(CALLS[command], 2)
    both = [CALLS[command][0], str(tmp_path), *CALLS[command][1:], "--name-server", "h:1"]
    assert "give PATH or --name-server, not both" in of_line(both, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--access-key", "alice"], "option --access-key: needs its secret: in --secret-key-file or in the variable"),
        (["--secret-key-file", "x"], "option --secret-key-file: needs --access-key"),
        (["--tls-ca-file", "x"], "options that begin with --tls- need --tls"),
        (["--tls", "--tls-cert-file", "x"], "give --tls-cert-file and --tls-key-file together"),
        (["--tls", "--tls-ca-file", "/nowhere"], "/nowhere"),
        (["--request-timeout", "0s"], "option --request-timeout: must be longer than 0"),
        (["--request-timeout", "soon"], "--request-timeout"),
        (["--namespace", "a%b"], "--namespace"),
        (["--conf", "broker.conf"], "--conf is the configuration of stores"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(options: list[str], said: str) -> None:
    with planned_server(keep_silent) as server:
        text = of_line(["topics", "--name-server", server.address, *options], 1 if said == "/nowhere" else 2)
        assert said in text
        assert server.commands == []


@pytest.mark.parametrize("address", ["localhost", "h:0", "h:99999", "user:secret@h:1", ""])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert "--name-server" in of_line(["topics", "--name-server", address], 2)


def test_options_of_a_cluster_are_not_for_stores(tmp_path: Path) -> None:
    text = of_line(["topics", str(tmp_path), "--access-key", "alice"], 2)
    assert text == "error: option --access-key: belongs to --name-server, and a store is named"


def test_the_secret_of_a_file_signs_and_stands_nowhere(tmp_path: Path, cluster: Cluster) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n", "utf-8")
    words = ["topics", "--access-key", "alice", "--secret-key-file", str(file)]
    refused(words, cluster.name_server.address)
    sent = [command.ext_fields or {} for command in cluster.name_server.commands + cluster.broker.commands]
    assert {fields.get("AccessKey") for fields in sent} == {"alice"}
    assert all(fields["Signature"] for fields in sent)
    assert SECRET not in repr(sent)


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n", "utf-8")
    words = ["topics", "-n", "h:1", "--access-key", "alice", "--secret-key-file", str(tmp_path / "secret")]
    assert "is empty" in of_line(words, 2)


@pytest.mark.parametrize("words", [["a", "b", "-n", "h:1"], ["a"], ["a", "b", "c"]])
def test_a_new_topic_is_named_with_its_store_or_alone(words: list[str]) -> None:
    assert "expected " in of_line(["create-topic", *words], 2)


@pytest.mark.parametrize("option", ["--sync", "--keep-unique-key", "--store-host=h:1", "--conf=x"])
def test_what_only_a_store_can_do_is_not_asked_of_a_cluster(option: str) -> None:
    name = option.partition("=")[0]
    assert f"{name} is for stores" in of_line(["produce", "-n", "h:1", "--topic", "T", option], 2)


def test_a_secret_is_no_option() -> None:
    text = of_line(["topics", "-n", "h:1", "--secret-key", SECRET], 2)
    assert "No such option" in text
    assert SECRET not in text


def test_lines_that_a_busy_broker_refuses_are_sent_again(cluster: Cluster) -> None:
    refusals = [2, 215]  # SYSTEM_BUSY, FLOW_CONTROL

    def busy_at_first(peer: Peer, command: RemotingCommand) -> None:
        if command.code != RequestCode.SEND_MESSAGE_V2:
            peer.send(make_response(command, 0))
        elif refusals:
            peer.send(make_response(command, refusals.pop(0), "[TIMEOUT_CLEAN_QUEUE]broker busy"))
        else:
            fields = {"msgId": "7F000001000068E00000000000000000", "queueId": "0", "queueOffset": "7"}
            peer.send(make_response(command, 0, None, fields))

    cluster.broker.plan = busy_at_first
    words = ["produce", "--topic", "T", "--name-server", cluster.name_server.address]
    result = CliRunner().invoke(app, words, input="hello\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].split() == ["T", "b", "0", "1", "7"]
    assert len(cluster.broker.until(RequestCode.SEND_MESSAGE_V2, 3)) == 3
