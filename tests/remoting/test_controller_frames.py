"""Headers and bodies of controllers say what Java's say: every frame of a captured life, read and written again."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_mq.remoting import (
    ANSWER_BODIES,
    ANSWER_HEADERS,
    REQUEST_BODIES,
    REQUEST_HEADERS,
    BodyError,
    RequestCode,
    read_body,
    read_header,
    write_body,
    write_header,
)
from spark_mq.remoting.command import read_texts, write_texts
from spark_mq.remoting.controllers import (
    BrokerReplicasInfo,
    ElectedMasterBody,
    EpochEntryCache,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from tests.support.captures import said_frames

OF_CONTROLLERS = {904, 1001, 1002, 1003, 1004, 1005, 1008, 1012, 1013}


def test_every_captured_frame_is_written_as_it_was_from_its_typed_header_and_body() -> None:
    typed = Counter[tuple[int, bool]]()
    for one in said_frames():
        if one.asked not in OF_CONTROLLERS:
            continue
        command, is_answer = one.command, one.command.is_response
        header_class = (ANSWER_HEADERS if is_answer else REQUEST_HEADERS)[one.asked]
        assert write_header(read_header(header_class, command)) == dict(command.ext_fields or {}), one
        body_class = (ANSWER_BODIES if is_answer else REQUEST_BODIES).get(one.asked)
        assert (body_class is not None) == bool(command.body), one
        if body_class is not None:
            assert write_body(read_body(body_class, command.body)) == command.body, one
        typed[one.asked, is_answer] += 1
    assert {code for code, _ in typed} == OF_CONTROLLERS
    assert {code for code, is_answer in typed if is_answer} == OF_CONTROLLERS - {904, 1008}
    assert sum(typed.values()) > 760


def test_bodies_that_the_capture_lacks_are_written_as_fastjson_writes_them() -> None:
    """Keys in their order, null left out, numbers as keys bare."""
    identity = ReplicaIdentity(broker_name="b", broker_id=1, broker_address="h:1", alive=True)
    info = ReplicasInfo(master_epoch=2, sync_state_set_epoch=3, in_sync_replicas=(identity,), not_in_sync_replicas=())
    body = write_body(BrokerReplicasInfo(replicas_info_table={"b": info}))
    assert body == (
        b'{"replicasInfoTable":{"b":{"inSyncReplicas":[{"alive":true,"brokerAddress":"h:1","brokerId":1,"brokerName":"b"}],'
        b'"masterEpoch":2,"notInSyncReplicas":[],"syncStateSetEpoch":3}}}'
    )
    assert write_body(ElectedMasterBody(broker_ids=(2, 1))) == b'{"syncStateSet":[2,1]}'
    epochs = b'{"brokerId":1,"epochList":[{"endOffset":9,"epoch":1,"startOffset":0}],"maxOffset":9}'
    assert write_body(read_body(EpochEntryCache, epochs)) == epochs
    assert REQUEST_HEADERS[RequestCode.GET_BROKER_EPOCH_CACHE] is REQUEST_HEADERS[RequestCode.GET_CONTROLLER_CONFIG]


def test_a_list_of_names_is_read_and_written() -> None:
    assert write_texts(("a", 'b"')) == b'["a","b\\""]'
    assert read_texts("names", b'["a","b\\""]') == ("a", 'b"')
    assert read_texts("names", b'["a",1]') == ("a", "1"), "as fastjson reads it"
    with pytest.raises(BodyError, match=r"bad body names at \[1\]: "):
        read_texts("names", b'["a",{}]')
    with pytest.raises(BodyError, match="bad body SyncStateSet at syncStateSet\\[0\\]"):
        read_body(SyncStateSet, b'{"syncStateSet":[9223372036854775808]}')
