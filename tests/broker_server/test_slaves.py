"""A running broker as a master: what slaves are told, and what operators are told of them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from spark_mq.broker_server.masters import KnownMaster, answer_of
from spark_mq.broker_server.opening import tell
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, read_body
from spark_mq.remoting.administration import HaRuntimeInfo
from storage.ha.follower import open_following
from storage.ha.replicas import UNPROVEN, Replica, Replicas
from storage.ha.sessions import Timing
from storage.pending import PutStatus
from storage.service.put_group import ReplicaAcks
from storage.settings.nouns import ReplicationConfig, StoreModeConfig
from tests.support.java_broker import free_ports
from tests.support.replicas import await_holder

SIZES = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=20000\nhaSendHeartbeatInterval=200\n"
PATIENCE = 30


def test_a_learners_copy_acknowledges_nothing() -> None:
    """It follows, and is never elected: a put that counted on it would be lost with the master."""
    acks = ReplicaAcks(StoreModeConfig(broker_role="SYNC_MASTER"), ReplicationConfig(in_sync_replicas=2))
    replicas = Replicas()
    replicas.listen(partial(tell, acks))
    wanted = acks.want(100, 2)
    assert wanted is not None
    replicas.connected(1, Replica("id:9", 9, "10.0.0.9:1", UNPROVEN, is_learner=True))
    replicas.acknowledged(1, 100)
    assert (wanted.done.done(), acks.in_sync(100), acks.holding_within(100, 2, 0)) == (False, 1, 1)
    replicas.connected(2, Replica("id:2", 2, "10.0.0.2:1", UNPROVEN))
    replicas.acknowledged(2, 100)
    assert (wanted.done.result(0), acks.in_sync(100)) == (PutStatus.PUT_OK, 2)


def test_a_broker_serves_its_log_and_says_how_far_its_slaves_are(tmp_path: Path) -> None:
    port = free_ports()
    text = f"storePathRootDir={tmp_path}/master\nlistenPort={port}\nbrokerName=broker-a\n{SIZES}"
    conf = tmp_path / "replica.conf"
    conf.write_text(SIZES, "utf-8")
    settings = ClientSettings((f"127.0.0.1:{port}",))

    async def run() -> tuple[HaRuntimeInfo, str]:
        running = await RunningBroker.start(read_configuration(text.encode(), None, {}))
        try:
            return await asyncio.to_thread(follow, running)
        finally:
            await running.close()

    def follow(running: RunningBroker) -> tuple[HaRuntimeInfo, str]:
        assert running.replication is not None
        address = running.replication.address
        assert address == f"127.0.0.1:{port + 1}"
        with running._service.exclusive() as store:
            for number in range(9):
                store.put("orders", b"body %d" % number)
            end = store.writer.log_end
        known = KnownMaster(settings)
        known.tell(f"127.0.0.1:{port}", address)
        first = known.record(0, "orders")
        assert first is not None
        assert int.from_bytes(first[:4], "big") == len(first)
        assert [known.record(place, "orders") for place in (1, end)] == [b"", b""]
        replica = str(tmp_path / "replica")
        with open_following(replica, address, config=str(conf), timing=Timing(200)) as following:
            assert following.follower.wait(lambda status: status.end == end, PATIENCE)
            assert await_holder(running.replication.replicas, end, PATIENCE)
            told = answer_of(f"127.0.0.1:{port}", RequestCode.GET_BROKER_HA_STATUS, settings)
        is_known = running.replication._settings.is_known
        assert not is_known("127.0.0.1")
        delays = answer_of(f"127.0.0.1:{port}", RequestCode.GET_ALL_DELAY_OFFSET, settings)
        assert is_known("127.0.0.1"), "nobody but a slave asks for that"
        assert not is_known("127.0.0.2")
        return read_body(HaRuntimeInfo, told.body), bytes(delays.body).decode()

    info, delays = asyncio.run(run())
    (slave,) = info.connections
    assert info.is_master
    assert info.in_sync_slave_count == 1
    assert (slave.in_sync, slave.diff, slave.slave_ack_offset) == (True, 0, info.master_commitlog_max_offset)
    assert "offsetTable" in delays
