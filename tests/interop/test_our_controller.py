"""Apache's brokers in controller mode, and mqadmin, at our controller."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.controlled_brokers import (
    NAME,
    TOPIC,
    ControlledBrokers,
    SendingOn,
    brokers_under,
    controlled_brokers,
    sending_on,
)
from tests.support.controller_process import controller_process
from tests.support.java_broker import Oracle, wait_until
from tests.support.kill_hunts import Place, Verdict, judged

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


def judge(
    oracle: Oracle, brokers: ControlledBrokers, sender: SendingOn, out: Path, kills: Iterable[str] = ()
) -> Verdict:
    """What the master serves to a Java consumer, beside what was acknowledged; nothing is lost, nothing is there twice."""
    master = brokers.group.master_id
    assert master is not None
    found = oracle.consume_all(out, brokers.brokers[master], [TOPIC], lookUps=0)
    there = [Place(line["keys"], line["queueId"], line["queueOffset"]) for line in found if line["type"] == "message"]
    acknowledged = [Place(str(line["n"]), line["queueId"], line["queueOffset"]) for line in sender.acknowledged()]
    verdict = judged(kills, acknowledged, there)
    assert verdict.is_clean, verdict
    return verdict


@pytest.mark.long
def test_a_killed_controller_goes_on_where_it_was(oracle: Oracle, tmp_path: Path) -> None:
    """While it is down messages flow; a master that was killed meanwhile is followed when it is back."""
    with controller_process(tmp_path) as controller, brokers_under(controller, oracle, tmp_path) as brokers:
        for broker_id in (1, 2):
            brokers.start(broker_id)
        brokers.await_set({1, 2})
        with sending_on(oracle, tmp_path / "sent.jsonl", brokers.name_server.address) as sender:
            sender.await_more(100)
            brokers.await_copied(TOPIC)
            before = brokers.await_set({1, 2})
            controller.kill()
            sender.await_more(100)
            controller.start()
            again = brokers.await_set({1, 2})
            assert again.master_epoch >= before.master_epoch
            assert again.replicas == before.replicas
            controller.kill()
            assert again.master_id is not None
            brokers.kill(again.master_id)
            controller.start()
            after = brokers.await_master_after(again.master_epoch)
            assert after.master_id == 3 - again.master_id
            sender.await_more(50)
            brokers.start(again.master_id)
            brokers.await_set({1, 2})
            sender.stop()
            assert judge(oracle, brokers, sender, tmp_path / "found.jsonl").acknowledged > 250


@pytest.mark.long
def test_mqadmin_at_our_controller(oracle: Oracle, tmp_path: Path) -> None:
    def mqadmin(*words: str) -> str:
        return oracle.java(MQADMIN, *words)

    with controlled_brokers(oracle, tmp_path) as brokers:
        address = brokers.controller.address
        told = mqadmin("getControllerMetaData", "-a", address)
        for line in ("#ControllerGroup\tcontroller", "#ControllerLeaderId\tn0", f"#ControllerLeaderAddress\t{address}"):
            assert line in told
        assert f"#Peer:\tn0:{address}" in told
        for broker_id in (1, 2):
            brokers.start(broker_id)
        brokers.await_set({1, 2})
        in_sync = mqadmin("getSyncStateSet", "-a", address, "-b", NAME)
        assert re.search(r"#MasterBrokerId\t1\n#MasterAddr\t" + re.escape(brokers.brokers[1].address), in_sync), in_sync
        assert in_sync.count("InSyncReplica:") == 2
        assert in_sync.count("alive=true") == 2
        epochs = mqadmin("getBrokerEpoch", "-n", brokers.name_server.address, "-b", NAME)
        assert "Epoch: EpochEntry{epoch=1, startOffset=0" in epochs, epochs

        designated = mqadmin("electMaster", "-a", address, "-b", "2", "-bn", NAME, "-c", "LabCluster")
        assert f"#BrokerMasterAddr\t{brokers.brokers[2].address}\n#MasterEpoch\t2\n" in designated, designated
        group = brokers.await_set({1, 2})
        assert (group.master_id, group.master_epoch) == (2, 2)
        again = oracle.java_said(MQADMIN, "electMaster", "-a", address, "-b", "2", "-bn", NAME, "-c", "LabCluster")
        assert "CODE: 2011" in again, again

        clean = ("cleanBrokerMetadata", "-a", address, "-bn", NAME, "-c", "LabCluster", "-b", "1")
        assert f"Broker [{NAME},  1] is still alive, clean up failure" in oracle.java_said(MQADMIN, *clean)
        brokers.kill(1)
        wait_until(lambda: set(brokers.group.sync_state_set) == {2}, "the killed one is in sync no more")
        assert "success" in mqadmin(*clean)
        assert set(brokers.group.replicas) == {2}
        assert "notifyBrokerRoleChanged" in mqadmin("getControllerConfig", "-a", address)
        changed = mqadmin("updateControllerConfig", "-a", address, "-k", "notifyBrokerRoleChanged", "-v", "false")
        assert "success" in changed, changed
        assert "notifyBrokerRoleChanged=false\n" in (tmp_path / "controller.properties").read_text("ascii")
