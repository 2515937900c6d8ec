"""Every command of mqadmin that brokers and name servers answer says at ours what it says at Apache's.

    COMMANDS    run at both; what is printed is alike, but for times, rates, ids and addresses
    REFUSED     our broker answers that it does not support the request
    ELSEWHERE   not run here

A broker and a name server of each have the same messages and clients. One process (`AdminCommands.java`) runs each command at ours and
then at Apache's. `test_every_command_of_mqadmin_is_run_or_named` holds the lists against mqadmin's own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from tests.support.java_broker import RELEASE, Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.long]

COUNT, QUEUES = 40, 2
SETTINGS: dict[str, Any] = {
    "timerWheelEnable": "true",
    "traceTopicEnable": "true",
}
COMMANDS = """
+consumer {namesrv} Team Sent {instance}
+producer {namesrv} Makers Sent {instance}-maker
+read {namesrv} Team Sent
clusterList
clusterList -m
brokerStatus -b {broker}
brokerStatus -c LabCluster
topicList
topicList -c
topicRoute -t Sent
topicRoute -t Sent -l
topicClusterList -t Sent
topicStatus -t Sent
topicStatus -t Nowhere
updateTopic -b {broker} -t Made -r 3 -w 2 -p 6
updateTopic -b {broker} -t Made -r 3 -w 2 -p 6
updateTopic -c LabCluster -t MadeByAll -r 1 -w 1 -a +message.type=FIFO
updateTopic -b {broker} -t Ordered -r 2 -w 2 -o true
updateTopic -b {broker} -t TBW102
updateTopicList -b {broker} -f {files}/topics.json
updateTopicPerm -b {broker} -t Made -p 4
topicRoute -t Made
topicStatus -t Made
deleteTopic -c LabCluster -t Made
topicRoute -t Made
updateSubGroup -b {broker} -g Fresh -r 3 -q 2 -d false
updateSubGroup -c LabCluster -g Fresh -s false
updateSubGroupList -b {broker} -f {files}/groups.json
getConsumerConfig -g Fresh
deleteSubGroup -b {broker} -g Fresh -r true
consumerProgress
consumerProgress -g Team
consumerProgress -g Team -t Sent -s true
consumerConnection -g Team
consumerConnection -g Nobody
consumerStatus -g Team -i {client}
producerConnection -g Makers -t Sent
producerConnection -g Nobody -t Sent
producer -b {broker}
queryMsgById -t Sent -i {id}
queryMsgById -t Sent -i {id} -g Team -d {client}
queryMsgByUniqueKey -t Sent -i {key}
queryMsgByUniqueKey -t Sent -i {key} -g Team -d {client}
queryMsgByKey -t Sent -k {userKey}
queryMsgByKey -t Sent -k nothing
queryMsgByOffset -t Sent -b broker-lab -i 0 -o 3
queryMsgByOffset -t Sent -b broker-lab -i 0 -o 300
queryCq -t Sent -q 0 -i 2 -c 3 -b {broker} -g Team
queryCq -t Sent -q 0 -i 2 -c 3
sendMessage -t Written -p hello -k greeting -c TagX
sendMessage -t Written -p hello -b broker-lab -i 0
sendMsgStatus -b broker-lab -c 3 -s 10
checkMsgSendRT -t Written -a 3 -s 10
consumeMessage -t Sent -c 3
consumeMessage -t Sent -b broker-lab -i 0 -o 2 -c 2
printMsg -t Written -s TagX
printMsg -t Sent -s TagB
printMsgByQueue -t Sent -a broker-lab -i 1 -p true -d false
getBrokerConfig -b {broker}
updateBrokerConfig -b {broker} -k defaultQueryMaxNum -v 31
updateBrokerConfig -b {broker} -k configBlackList -v x
skipAccumulatedMessage -g Team -t Sent
resetOffsetByTime -g Team -t Sent -s 0
resetOffsetByTime -g Team -t Sent -s -1
resetOffsetByTime -g Team -t Sent -s now -b {broker} -q 0
resetOffsetByTime -g Team -t Sent -s 0 -b {broker} -q 1 -o 7
+read {namesrv} Team Sent
resetOffsetByTime -g Nobody -t Sent -s 0
resetOffsetByTime -g Team -t Nowhere -s 0
cloneGroupOffset -s Team -d Copied -t Sent -o true
consumerProgress -g Copied
getConsumerStatus -g Team -t Sent
statsAll
statsAll -a
statsAll -t Sent
brokerConsumeStats -b {broker}
wipeWritePerm -b broker-lab
addWritePerm -b broker-lab
getNamesrvConfig
updateNamesrvConfig -k waitSecondsForService -v 44
updateNamesrvConfig -k kvConfigPath -v x
updateKvConfig -s Space -k k -v v
deleteKvConfig -s Space -k k
updateOrderConf -t Sent -m put -v broker-lab:2
updateOrderConf -t Sent -m get
updateOrderConf -t Sent -m delete
updateOrderConf -t Sent -m get
cleanExpiredCQ -b {broker}
cleanUnusedTopic -c LabCluster
deleteExpiredCommitLog -b {broker}
exportMetadata -b {broker} -f {files}
exportMetadata -b {broker} -g -f {files}
exportMetadata -c LabCluster -f {files}
exportConfigs -c LabCluster -f {files}
exportMetrics -c LabCluster -f {files}
exportMetadata -c LabCluster -t -f {files}
allocateMQ -t Sent -i 10.0.0.1,10.0.0.2
setConsumeMode -b {broker} -t Sent -g Team -m PULL
haStatus -b {broker}
getBrokerEpoch -b broker-lab
queryMsgTraceById -i {key}
addBroker -c {broker} -b nothing.conf
removeBroker -c {broker} -b LabCluster:broker-lab:0
remappingStaticTopic -t Sent -c LabCluster
"""
REFUSED = {
    "setConsumeMode -b {broker} -t Sent -g Team -m POP": "POP",
    "exportPopRecord -b {broker}": "POP",
    "getColdDataFlowCtrInfo -b {broker}": "cold data",
    "updateColdDataFlowCtrGroupConfig -b {broker} -g Team -v 10": "cold data",
    "removeColdDataFlowCtrGroupConfig -b {broker} -g Team": "cold data",
    "setCommitLogReadAheadMode -b {broker} -m 1": "cold data",
    "checkRocksdbCqWriteProgress -c LabCluster -t Sent": "RocksDB",
    "rocksDBConfigToJson -c LabCluster -t topics": "RocksDB",
    "resetMasterFlushOffset -b {broker} -o 0": "the master's flushed end, which a slave here does not keep",
}
"""Commands whose requests our broker answers with code 3 (not supported), and what they are about."""
REFUSED_LATER = {
    "5.4.0": {"switchTimerEngine -b {broker} -e R": "the timer in RocksDB"},
    "5.5.0": {
        "getBrokerLiteInfo -b {broker}": "lite topics",
        "getParentTopicInfo -p Sent": "lite topics",
        "getLiteTopicInfo -p Sent -l child": "lite topics",
        "getLiteGroupInfo -p Sent -g Team": "lite topics",
        "getLiteClientInfo -p Sent -g Team -c {client}": "lite topics",
        "triggerLiteDispatch -p Sent -g Team -b broker-lab": "lite topics",
    },
}
"""Those that a release has added."""
SILENT = {command for command in REFUSED_LATER["5.5.0"] if not command.startswith("getBrokerLiteInfo")}
"""mqadmin says of these that a broker had an error, and not which one."""
SILENT_ERROR = re.compile(r"^(\[broker-lab\] error\.|broker-lab +error *)$", re.MULTILINE)
ELSEWHERE = {
    **dict.fromkeys(("createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser"), "access control"),
    **dict.fromkeys(("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"), "access control"),
    **dict.fromkeys(("getControllerMetaData", "getControllerConfig", "updateControllerConfig"), "a controller"),
    **dict.fromkeys(("getSyncStateSet", "electMaster", "cleanBrokerMetadata"), "a controller"),
    "updateStaticTopic": "two brokers: test_static_topics.py",
    **dict.fromkeys(("dumpCompactionLog", "exportMetadataInRocksDB"), "files, and no server"),
    **dict.fromkeys(("startMonitoring", "clusterRT"), "no end: requests of consumerProgress, sendMsgStatus for ever"),
}
"""Commands that are not run here, and what they are about. Users and controllers have modules of their own."""
SETTINGS_TOLD = ("getBrokerConfig -b {broker}", "getNamesrvConfig")
PLACES = {
    "listenPort",
    "haListenPort",
    "namesrvAddr",
    "storePathRootDir",
    "storePathCommitLog",
    "kvConfigPath",
    "configStorePath",
}
NAMED_ALIKE = {"isInBrokerContainer", "isBrokerContainer", "isScanAvailableNameSrv"}
"""Java tells fields by other names than it reads."""
NOT_TOLD = re.compile(
    r".*ThreadPoolNums|(?:client|server)[A-Z].*|writeBuffer.*|connectTimeoutMillis|useEpollNativeSelector|useTLS|metrics.*"
    r"|timer(?:CheckMetricsWhen|EnableDisruptor|StopDequeue|WarmEnable)|controllerAddr|messageStorePlugIn|rocketmqHome"
    r"|clusterTest|enableControllerInNamesrv|productEnvName"
)
"""Settings of Java's that ours do not tell: without a default, of the machine, or without an effect."""

EXPORTED = ("metadata.json", "topic.json", "subscriptionGroup.json", "configs.json", "metrics.json")


class Cluster(NamedTuple):
    """A name server and a broker with a topic of messages that everybody asks for."""

    name: str
    broker: RunningBroker
    files: Path
    names: dict[str, str]

    def words(self, command: str) -> list[str]:
        words = command.format(**self.names).split()
        return words if not words or words[0].startswith("+") else [*words, "-n", self.broker.name_server]


class Said(NamedTuple):
    """What a command printed at our servers and at Apache's."""

    ours: str
    theirs: str


@contextmanager
def cluster(servers: Oracle, name: str) -> Iterator[Cluster]:
    """New servers with messages that are alike in each, but for times and ids."""
    files = servers.directory / "files"
    files.mkdir(parents=True)
    topics = [{"topicName": f"Listed{number}", "readQueueNums": number, "writeQueueNums": number} for number in (1, 2)]
    (files / "topics.json").write_text(json.dumps(topics), "utf-8")
    groups = [{"groupName": f"Listed{number}", "retryMaxTimes": number} for number in (1, 2)]
    (files / "groups.json").write_text(json.dumps(groups), "utf-8")
    given = SETTINGS | ({"rocketmqVersion": RELEASE} if servers.is_ours else {})
    with servers.namesrv() as name_server, servers.broker(servers.directory / "store", name_server, **given) as broker:
        settings = ClientSettings((name_server,))
        with Admin(settings) as admin:
            for topic, queues in (("Sent", QUEUES), ("Written", 1)):
                admin.create_topic(NewTopic(topic, queues, queues), address=broker.address)
        with Producer(settings, "Makers") as producer:
            sent = [
                producer.send(
                    Message("Sent", b"%02d" % number, tags="Tag" + "AB"[number % 2], keys=f"key{number}"),
                    MessageQueue("Sent", "broker-lab", number % QUEUES),
                )
                for number in range(COUNT)
            ]
        names = {
            "broker": broker.address,
            "namesrv": name_server,
            "files": str(files),
            "client": f"127.0.0.1@{name}",
            "instance": name,
            "id": sent[3].offset_message_id,
            "key": sent[3].message_id,
            "userKey": "key3",
        }
        yield Cluster(name, broker, files, names)


def refused_by(release: str) -> list[str]:
    """The commands of that release's mqadmin that are refused."""
    later = [command for since, commands in REFUSED_LATER.items() if since <= release for command in commands]
    return [*REFUSED, *later]


@pytest.fixture(scope="module")
def said(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What each command printed, and each exported file; all in one process, each at our servers and then at Apache's."""
    directory = tmp_path_factory.mktemp("mqadmin-")
    script, out = directory / "script.jsonl", directory / "said.jsonl"
    commands = ["", *COMMANDS.strip().splitlines(), *refused_by(oracle.version)]
    with (
        cluster(Oracle(directory / "ours", is_ours=True), "ours") as ours,
        cluster(Oracle(directory / "theirs", oracle.home, is_ours=False), "theirs") as theirs,
    ):
        lines = [json.dumps(each.words(command)) for command in commands for each in (ours, theirs)]
        script.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        oracle.java("AdminCommands", script, out, timeout_seconds=600)
        files = {name: Said(*(exported(each.files / name) for each in (ours, theirs))) for name in EXPORTED}
    texts = [json.loads(line)["said"] for line in out.read_text("utf-8").splitlines()]
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return files | {command: Said(*pair) for command, pair in zip(commands, pairs, strict=True)}


def exported(path: Path) -> str:
    return json.dumps(json.loads(path.read_text("utf-8")), indent=1, sort_keys=True).replace(",\n", "\n")


def masked(text: str) -> list[str]:
    """The lines, without what differs from run to run, sorted."""
    for pattern, shown in MASKS:
        text = pattern.sub(shown, text)
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


MASKS = [
    (re.compile(pattern, re.MULTILINE), shown)
    for pattern, shown in (
        (r"\bV5_\d_\d\b", "VERSION"),
        (r"^.*\bbrokerVersion\s+: \d+$", ""),  # releases from 5.4.0 on do not tell it
        (r"^.*RMQ_SYS_ROCKSDB_TRANS_\w+.*$", ""),  # the same have these topics
        (r"(write perm of .* OK, )\d+", r"\1COUNT"),
        (r"/\S*/(?:ours|theirs)(?=/)", "DIRECTORY"),
        (r"127\.0\.0\.1@(?:ours|theirs)", "CLIENT"),
        (r"(instanceName\s*: )(?:ours|theirs)", r"\1INSTANCE"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[,.:]\d+)?", "TIME"),
        (r"\b20\d{12}(?:\d{3})?\b", "TIME"),
        (r"\b1[789]\d{11}\b", "MS"),
        (r"\[ 0 days, .* seconds \]", "SPAN"),
        (r"\b[0-9A-F]{32,56}\b", "ID"),
        (r"(?<=\w)@[0-9a-f]{5,8}\b", "@HASH"),
        (r"\b(spentTimeMills=|rt=)\d+", r"\1MS"),
        (r"(\btrue\s+)\d+$", r"\1MS"),
        (r"(EntireTimeMax\s*: )\d+", r"\1MS"),
        (r"(timerReadBehind\s*: )[01]$", r"\1SECONDS"),
        (r"\b[01](?=-0\(\d+\.\dw)", "SECONDS"),  # the same in clusterList
        (r"(?<=s\]:|~\]:)\d+", "COUNT"),  # puts by their duration
        (r"(remainHowManyDataToFlush\s*: )\d.*B", r"\1BYTES"),
        (r"(?<![\w.])\d+\.\d+(?:E-?\d+)?(?![\w.])", "RATE"),
        (r"(?<=RATE)(?: RATE)+", ""),
        (
            r"(\b[gp][eu]t\w*Tps\s*:)[^\S\n]*(?:RATE)?$",
            r"\1 RATE",
        ),  # none in the first ten seconds
        (r"^%RETRY%Team +broker-lab +0 +(?:-?\d+ *|ProcessQueueInfo.*)$", ""),  # which a consumer finds sooner or later
        (r"(PUSH\s+CLUSTERING\s+)\d+", r"\1RATE"),
        (r"(RATE\s+)\d+(\s+NO_CONSUMER)", r"\1COUNT\2"),
        (r"(RATE\s+RATE\s+)\d+\s+\d+", r"\1COUNTS"),  # of statsAll: as far as they are sampled
        (r" {2,}", "  "),
    )
]


def differences(mine: Sequence[str], their: Sequence[str]) -> dict[str, list[str]]:
    return {
        "ours": sorted((Counter(mine) - Counter(their)).elements()),
        "theirs": sorted((Counter(their) - Counter(mine)).elements()),
    }


TOPIC_AS_GROUP = re.compile(
    r"^(?:LabCluster +)?Sent +Sent\b.*$|MessageTrack \[consumerGroup=Sent,[^\]]*\]", re.MULTILINE
)
"""What 5.3.3's broker adds: it enters a topic's name among the topic's groups (ConsumerManager.registerConsumer, mended in 5.4.0)."""


def test_commands_say_what_they_say_at_apaches_servers(oracle: Oracle, said: dict[str, Said]) -> None:
    found = {}
    for command in COMMANDS.strip().splitlines():
        theirs = said[command].theirs
        if oracle.version == "5.3.3":
            theirs = TOPIC_AS_GROUP.sub("", theirs)
        mine, their = masked(said[command].ours), masked(theirs)
        if command not in SETTINGS_TOLD and mine != their:
            found[command] = differences(mine, their)
    assert found == {}


def test_what_is_refused_is_refused_as_not_supported(oracle: Oracle, said: dict[str, Said]) -> None:
    answers = {command: said[command].ours for command in refused_by(oracle.version) if command not in SILENT}
    assert [command for command, text in answers.items() if not re.search(r"CODE: 3 .*not supported", text)] == []
    silent = SILENT & {*refused_by(oracle.version)}
    assert [command for command in silent if not SILENT_ERROR.search(said[command].ours)] == []


def test_every_command_of_mqadmin_is_run_or_named(oracle: Oracle, said: dict[str, Said]) -> None:
    known = re.findall(r"^   (\w+) ", said[""].theirs, re.MULTILINE)
    run = {command.split()[0] for command in (*COMMANDS.strip().splitlines(), *refused_by(oracle.version))}
    assert len(known) > 80
    assert {*known} - run == {*ELSEWHERE}


def test_settings_that_both_tell_are_told_alike(oracle: Oracle, said: dict[str, Said]) -> None:
    for command in SETTINGS_TOLD:
        mine, their = (dict(re.findall(r"^(\w\S*) *= *(.*?) *$", text, re.MULTILINE)) for text in said[command])
        both = (mine.keys() & their.keys()) - PLACES
        assert len(both) > 20
        is_later = oracle.version > "5.3.3"
        other = {name for name in both if mine[name] != their[name]}
        assert {name: (mine[name], their[name]) for name in other} == {}
        missing = their.keys() - mine.keys() - NAMED_ALIKE
        assert is_later or [name for name in missing if not NOT_TOLD.fullmatch(name)] == []


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_files_are_alike(said: dict[str, Said], name: str) -> None:
    mine, their = map(masked, said[name])
    assert len(their) > 10
    assert differences(mine, their) == {"ours": [], "theirs": []}
