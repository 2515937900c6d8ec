"""Options of a running cluster: what belongs together, and that no secret is shown."""

from __future__ import annotations

import pickle

import pytest

from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS
from spark_mq.conditions import OptionError
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.source.offsets import NamedQueue, QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import QueuePartition
from spark_mq.source.pull_reader import PullSplit
from spark_mq.source.pulls import PullTerms
from spark_mq.source.rows import RowRequest
from spark_mq.source.starting_offsets import AtOffsets

MINIMAL = {"nameServer": "a:9876;b:9876", "topic": "T"}
SECRETS = {"secretKey": "s3cr3t-1", "securityToken": "s3cr3t-2", "tlsKeyPassword": "s3cr3t-3"}
WITH_SECRETS = {"accessKey": "me", "tls": "true", "tlsCertFile": "/c.pem", "tlsKeyFile": "/k.pem", **SECRETS}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({**MINIMAL, **options})


def test_a_name_server_stands_in_place_of_a_path() -> None:
    options = parse(namespace="ns", accessKey="me", secretKey="k", pullTimeout="10s")
    assert options.is_live
    assert options.pull_timeout == 10_000
    settings = options.client_settings()
    assert settings.name_servers == ("a:9876", "b:9876")
    assert settings.namespace == "ns"
    assert settings.credentials is not None
    assert settings.credentials.secret_key == "k"
    assert settings.tls is None
    assert not SourceOptions.parse({"path": "/s", "topic": "T"}).is_live


def test_tls_options_reach_the_client() -> None:
    tls = parse(tls="true", tlsVerify="false", tlsCertFile="/c.pem", tlsKeyFile="/k.pem").client_settings().tls
    assert tls is not None
    assert (tls.verify, tls.check_hostname, tls.cert_file, tls.key_file) == (False, False, "/c.pem", "/k.pem")


def test_no_secret_is_shown_and_all_reach_the_tasks() -> None:
    options = parse(**WITH_SECRETS)
    for shown in (repr(options), str(options), repr(options.client_settings()), str(options.client_settings())):
        assert "s3cr3t" not in shown
    split = PullSplit(
        PullTerms(options.client_settings(), "G"), QueueId("T", "b", 0), 0, ((0, "b:1"),), ((0, 9),), RowRequest(())
    )
    assert "s3cr3t" not in repr(split) + repr(QueuePartition(split))
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(split)) == split
    assert options.secret_key == "s3cr3t-1"


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_is_shown_when_it_is_refused(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({"path": "/s", "topic": "T", name: "s3cr3t"})
    assert name in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"path": "/store"}, "path"),
        ({"nameServer": "localhost"}, "nameServer"),
        ({"nameServer": " ; "}, "nameServer"),
        ({"nameServer": "host:0"}, "nameServer"),
        ({"conf": "/broker.conf"}, "conf"),
        ({"brokerName": "b"}, "brokerName"),
        ({"logical": "true"}, "logical"),
        ({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger"),
        ({"accessKey": "me"}, "secretKey"),
        ({"secretKey": "k"}, "secretKey"),
        ({"securityToken": "t"}, "securityToken"),
        ({"tlsVerify": "false"}, "tls"),
        ({"tlsCaFile": "/ca.pem"}, "tls"),
        ({"tls": "true", "tlsKeyFile": "/k.pem"}, "tlsKeyFile"),
        ({"tls": "true", "tlsCertFile": "/k.pem"}, "tlsKeyFile"),
        ({"expressionType": "SQL92"}, "expressionType"),
        ({"expressionType": "SQL", "subExpression": "a = 1"}, "expressionType"),
        ({"subExpression": "a = 1"}, "subExpression"),
        ({"subExpression": "TagA", "tags": "TagA"}, "subExpression"),
        ({"namespace": "a%b"}, "namespace"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_options_name(options: dict[str, str], refused: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert f"option {refused}: " in str(caught.value)


def test_options_of_clusters_are_refused_for_stores() -> None:
    for name, text in {"namespace": "ns", "tls": "true", "subExpression": "a", "pullFromSlave": "true"}.items():
        with pytest.raises(OptionError, match=f"option {name}: belongs to nameServer"):
            SourceOptions.parse({"path": "/s", "topic": "T", name: text})


def test_tags_may_be_given_as_an_expression() -> None:
    assert parse(subExpression="TagA || TagB").wanted_tags == ("TagA", "TagB")
    assert parse(tags="TagA").wanted_tags == ("TagA",)
    assert parse(subExpression="*").wanted_tags is None
    assert parse(subExpression="a > 1", expressionType="sql92").wanted_tags is None


def test_a_namespace_stands_before_all_names_of_topics_and_the_group() -> None:
    options = parse(namespace="ns", consumerGroup="G", startingOffsets='{"T": {"b": {"0": 7}}}')
    assert (options.topic, options.consumer_group) == ("ns%T", "ns%G")
    assert isinstance(options.starting_offsets, AtOffsets)
    assert options.starting_offsets.offsets == {NamedQueue("ns%T", "b", 0): 7}
    assert parse(topic="ns%T", namespace="ns").topic == "ns%T", "as rows and checkpoints have it"
    assert parse(topic="%RETRY%G", namespace="ns").topic == "%RETRY%ns%G"
    assert parse(topic="%RETRY%G").topic == "%RETRY%G"
    several = SourceOptions.parse({"nameServer": "a:1", "subscribe": "A,B", "namespace": "ns"})
    assert several.subscribe == ("ns%A", "ns%B")
    pattern = SourceOptions.parse({"nameServer": "a:1", "subscribePattern": "A|B", "namespace": "ns"}).subscribe_pattern
    assert pattern is not None
    assert [bool(pattern.fullmatch(name)) for name in ("ns%A", "ns%B", "A", "B", "xns%A")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    given = {"nameServer": "a:1", "subscribePattern": "(?i)order(?# all)|bill", "namespace": "ns"}
    pattern = SourceOptions.parse(given).subscribe_pattern
    assert pattern is not None
    assert [bool(pattern.fullmatch(name)) for name in ("ns%ORDER", "ns%Bill", "NS%order")] == [True, True, False]
    assigned = SourceOptions.parse({"nameServer": "a:1", "assign": '{"T": {"b": [3]}}', "namespace": "ns"}).assign
    assert assigned == {NamedQueue("ns%T", "b", 3)}


@pytest.mark.parametrize("text", ["0", "0s"])
def test_no_request_is_waited_for_no_time(text: str) -> None:
    with pytest.raises(OptionError, match="requestTimeout: must be longer than 0"):
        parse(requestTimeout=text)


def test_source_and_sink_wait_as_long_as_request_timeout_says_and_as_java_else() -> None:
    sink = {"nameServer": "a:9876", "topic": "T"}
    assert parse().client_settings().request_timeout_ms == MQ_CLIENT_API_TIMEOUT_MS == 3_000
    for told in (parse(requestTimeout="20s"), LiveSinkOptions.parse({**sink, "requestTimeout": "20s"}, "batch")):
        assert told.client_settings().request_timeout_ms == 20_000
