"""Many sends of one connection at once: each is answered under its own number, and stands where its answer says."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker_server.server import RunningBroker
from spark_mq.remoting import RemotingCommand, RequestCode, encode_frame, make_request, write_header
from spark_mq.remoting.messages import SendMessageRequest
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import TopicConfig
from tests.broker_server.asking import _connected, answers_of
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until

COUNT = 1_000
FEW = 200


def send(number: int, queue_id: int, *, is_oneway: bool = False) -> RemotingCommand:
    header = SendMessageRequest(
        producer_group="G",
        topic="Burst",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=0,
        born_time_ms=1_800_000_000_000 + number,
        flag=0,
        properties=f"UNIQ_KEY\x01key-{number}\x02KEYS\x01k{number}\x02",
    )
    code = RequestCode.SEND_MESSAGE_V2
    return make_request(code, write_header(header, code), b"%d" % number, is_oneway=is_oneway)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sends each run had that was taken."""
    counts: list[int] = []
    begin = Broker.begin_run

    def counted(broker: Broker, connection: object, run: object, now_ms: int) -> object:
        begun = begin(broker, connection, run, now_ms)  # type: ignore[arg-type]
        if begun is not None:
            counts.append(len(run.opaques))  # type: ignore[attr-defined]
        return begun

    monkeypatch.setattr(Broker, "begin_run", counted)
    return counts


def bodies(broker: RunningBroker) -> dict[tuple[int, int], bytes]:
    with broker.broker.parts.store.service.exclusive() as store:
        return {
            (queue_id, message.queue_offset): message.body
            for queue_id in range(4)
            for message in store.get("Burst", queue_id, 0, COUNT).messages
        }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_send_of_a_burst_has_its_answer(tmp_path: Path, runs: list[int], flush: str) -> None:
    """Among them some that are refused."""
    with running(tmp_path / "store", free_ports(), settings=f"flushDiskType={flush}\n") as broker:
        broker.broker.parts.store.service.make_topic(TopicConfig("Burst", 4, 4))
        host, port = broker.address
        commands = [send(n, 9 if n % 250 == 249 else n % 4) for n in range(COUNT)]
        answers = answers_of(f"{host}:{port}", commands, frozenset())
        stored = bodies(broker)
    assert sum(runs) > COUNT // 4, "most come in runs"
    by_number = {answer.opaque: answer for answer in answers}
    assert len(by_number) == len(answers) == COUNT
    for number, answer in by_number.items():
        if number % 250 == 249:
            assert answer.code == ResponseCode.INVALID_PARAMETER
            continue
        fields = answer.ext_fields or {}
        assert answer.code == ResponseCode.SUCCESS
        assert fields["transactionId"] == f"key-{number}"
        assert stored.pop((int(fields["queueId"]), int(fields["queueOffset"]))) == b"%d" % number
    assert not stored


@pytest.mark.parametrize("is_oneway", [False, True])
def test_a_burst_of_a_client_that_hangs_up_is_stored(tmp_path: Path, is_oneway: bool) -> None:
    """As much as a server's system receives by itself: what is left at a client that hangs up on answers never comes."""
    frames = [
        b"".join(map(bytes, encode_frame(send(n, n % 4, is_oneway=is_oneway)._replace(opaque=n)))) for n in range(FEW)
    ]
    with running(tmp_path / "store", free_ports()) as broker:
        broker.broker.parts.store.service.make_topic(TopicConfig("Burst", 4, 4))
        host, port = broker.address
        with _connected(f"{host}:{port}") as sock:
            sock.sendall(b"".join(frames))
        wait_until(lambda: len(bodies(broker)) == FEW, "all are stored")
        assert sorted(bodies(broker).values(), key=int) == [b"%d" % n for n in range(FEW)]
