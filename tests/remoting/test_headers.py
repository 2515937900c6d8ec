"""A typed header says what Java's says: the same names and texts, in both encodings and both directions."""

from __future__ import annotations

import re

import pytest

from spark_mq.remoting import (
    ANSWER_HEADERS,
    REQUEST_HEADERS,
    Header,
    HeaderEncoding,
    HeaderError,
    RemotingCommand,
    RequestCode,
    decode_frame,
    encode_frame,
    make_request,
    read_header,
    write_header,
)
from spark_mq.remoting.command import SHORT_NAMED, HeaderTemplate, wire_names
from spark_mq.remoting.consumers import MaxOffsetRequest, QueryConsumerOffsetRequest, SearchOffsetRequest
from spark_mq.remoting.messages import PullMessageRequest, SendMessageAnswer, SendMessageRequest
from tests.support.captures import FOLDERS, CapturedFrame, captured_frames

BESIDE_HEADERS = {"ReqT", "_UNIQUE_KEY_QUERY", "MSG_REGION", "TRACE_ON", "IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"}
"""What hooks and handlers put beside a header."""
WITH_HEADER = {0, 10, 11, 12, 19, 20, 21}
"""Answers of these codes have their header; a refusal may not."""
NOT_NEEDED = {(17, "defaultTopic"), (35, "clientID"), (37, "msgId")}
"""What has @CFNotNull, and is not looked at: Java passes over that it is missing."""
WITHOUT_CLASS = {400, 401, 3_442, 200_050, 200_051}
"""What only clients of another rebalance ask, and POP."""


def header_class_of(one: CapturedFrame) -> type[Header] | None:
    if one.is_response:
        return ANSWER_HEADERS.get(one.asked) if one.said["code"] in WITH_HEADER else None
    return REQUEST_HEADERS[one.asked] if one.asked not in WITHOUT_CLASS else None


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_captured_frame_is_written_as_it_was_from_its_typed_header(folder: str) -> None:
    typed = 0
    for one in captured_frames():
        header_class = header_class_of(one) if one.folder == folder else None
        if header_class is None:
            continue
        command = decode_frame(one.data)
        found = dict(command.ext_fields or {})
        code = None if one.is_response else command.code
        written = write_header(read_header(header_class, command), code)
        beside = found.keys() - written.keys()
        empty = {name for name in found if not found[name] and command.encoding is HeaderEncoding.ROCKETMQ}
        assert beside <= BESIDE_HEADERS | empty, one
        assert written.keys() <= found.keys(), one
        in_its_order = {name: written.get(name, found[name]) for name in found}
        fields = in_its_order if command.ext_fields is not None else None
        assert b"".join(encode_frame(command._replace(ext_fields=fields))) == one.data, one
        typed += 1
    assert typed > 290


def test_the_fast_headers_of_the_binary_encoding_are_written_in_javas_order() -> None:
    fast = {10, 11, 310, 320, 361}
    checked = set()
    for one in captured_frames():
        header_class = header_class_of(one)
        if one.folder != "binary" or one.asked not in fast or header_class is None:
            continue
        command = decode_frame(one.data)
        written = write_header(read_header(header_class, command), None if one.is_response else command.code)
        assert list(command.ext_fields or {})[: len(written)] == list(written), one
        checked.add((one.asked, one.is_response))
    assert checked == {(code, answer) for code in (11, 310, 320, 361) for answer in (False, True)}


def test_sends_have_short_names_where_the_code_says_so() -> None:
    assert "".join(wire_names(SendMessageRequest, RequestCode.SEND_MESSAGE_V2))[:14] == "abcdefghijklmn"
    assert wire_names(SendMessageRequest, RequestCode.SEND_MESSAGE)[:4] == (
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
    )
    header = SendMessageRequest(
        producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_count=4, queue_id=1, sys_flag=0,
        born_time_ms=1_700_000_000_000, flag=-1, properties="a\x01b\x02", is_batch=False, broker_name="broker-a",
    )  # fmt: skip
    for code in (*SHORT_NAMED, RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        for encoding in HeaderEncoding:
            request = make_request(code, write_header(header, code), encoding=encoding)
            command = decode_frame(b"".join(encode_frame(request)))
            assert read_header(SendMessageRequest, command) == header
            assert ("a" in (command.ext_fields or {})) == (code in SHORT_NAMED)


def _asked(**fields: str) -> RemotingCommand:
    return make_request(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": "5"} | fields
    )


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "0x1", "1_0", "1.0", "٣", "2147483648", "-2147483649", "9" * 5_000, "+", "null"]
)
def test_a_bad_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(
        HeaderError, match=r"bad header SearchOffsetRequest: field queueId is .*: it is a number of 32 bits"
    ):
        read_header(SearchOffsetRequest, _asked(queueId=text))


@pytest.mark.parametrize(
    ("text", "value"), [("+7", 7), ("-0", 0), ("007", 7), ("2147483647", 2**31 - 1), ("-2147483648", -(2**31))]
)
def test_numbers_are_read_as_java_reads_them(text: str, value: int) -> None:
    assert read_header(SearchOffsetRequest, _asked(queueId=text)).queue_id == value


def test_a_missing_field_is_named_as_the_wire_names_it() -> None:
    command = make_request(
        RequestCode.PULL_MESSAGE, {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0"}
    )
    with pytest.raises(
        HeaderError, match="bad header PullMessageRequest: field maxMsgNums is missing: it is required"
    ) as caught:
        read_header(PullMessageRequest, command)
    assert (caught.value.field, caught.value.found) == ("maxMsgNums", None)
    with pytest.raises(HeaderError, match="field msgId is missing"):
        read_header(SendMessageAnswer, RemotingCommand(0, flag=1))


def test_a_text_of_no_length_is_null_in_the_binary_encoding_alone() -> None:
    fields = {"consumerGroup": "", "topic": "T", "queueId": "0", "setZeroIfNotFound": ""}
    command = make_request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    header = read_header(QueryConsumerOffsetRequest, command)
    assert (header.consumer_group, header.set_zero_if_not_found) == ("", False)
    with pytest.raises(HeaderError, match="consumerGroup is missing"):
        read_header(QueryConsumerOffsetRequest, command._replace(encoding=HeaderEncoding.ROCKETMQ))
    named = command._replace(ext_fields=fields | {"consumerGroup": "G"}, encoding=HeaderEncoding.ROCKETMQ)
    assert read_header(QueryConsumerOffsetRequest, named).set_zero_if_not_found is None


def test_booleans_are_true_in_any_case_and_false_otherwise() -> None:
    for text, value in (("true", True), ("TRUE", True), ("True", True), ("false", False), ("yes", False), ("", False)):
        command = make_request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0", "committed": text})
        assert read_header(MaxOffsetRequest, command).committed is value
    assert write_header(MaxOffsetRequest(topic="T", queue_id=0)) == {"topic": "T", "queueId": "0", "committed": "true"}


def test_the_table_names_what_the_codes_of_the_reference_have() -> None:
    """Java's names, taken down from the classes of 5.3.3; `!` is @CFNotNull, a type follows a colon."""
    expected = {
        12: "topic! key! maxNum:i! beginTimestamp:l! endTimestamp:l! indexType lastKey",
        21: "topicSeq:i dataVersion maxTopicNum:i",
        201: "groupSeq:i dataVersion maxGroupNum:i",
        33: "topic offset:l!",
        14: "consumerGroup! topic! queueId:i! setZeroIfNotFound:b",
        15: "consumerGroup! topic! queueId:i! commitOffset:l!",
        38: "consumerGroup!",
        35: "clientID! producerGroup consumerGroup",
        36: "offset:l! group! delayLevel:i! originMsgId originTopic unitMode:b maxReconsumeTimes:i",
        37: "topic producerGroup! tranStateTableOffset:l! commitLogOffset:l! commitOrRollback:i! fromTransactionCheck:b "
        "msgId! transactionId",
        39: "topic tranStateTableOffset:l! commitLogOffset:l! msgId transactionId offsetMsgId",
        29: "topic! queueId:i! timestamp:l! boundaryType",
        30: "topic! queueId:i! committed:b",
        31: "topic! queueId:i!",
        32: "topic! queueId:i!",
        370: "producerGroup topic! recallHandle!",
        17: "topic! defaultTopic! readQueueNums:i! writeQueueNums:i! perm:i! topicFilterType! topicSysFlag:i order:b "
        "attributes force:b",
        203: "consumerGroup!",
        204: "producerGroup!",
        207: "groupName! cleanOffset:b",
        208: "consumerGroup! topic topicList",
        215: "topic!",
        222: "group! topic! queueId:i offset:l timestamp:l! isForce:b!",
        223: "topic! group! clientAddr",
        300: "topic!",
        303: "topic! group!",
        307: "consumerGroup! clientId! jstackEnable:b",
        308: "filterGroups compareGroup! topic!",
        309: "consumerGroup! clientId msgId brokerName topic topicSysFlag:i groupSysFlag:i",
        314: "srcGroup! destGroup! topic offline:b",
        315: "statsName! statsKey!",
        317: "isOrder:b!",
        321: "topic queueId:i index:l count:i consumerGroup",
        323: "topic msgId",
        343: "group!",
        345: "group! topic",
        351: "topic!",
        352: "group!",
        353: "group! topic! readable:b",
        905: "minBrokerId:l brokerName minBrokerAddr offlineBrokerAddr haBrokerAddr",
        906: "masterHaAddress masterFlushOffset:l masterAddress",
        908: "masterFlushOffset:l!",
        40: "consumerGroup!",
        220: "group! topic! queueId:i offset:l timestamp:l! isForce:b!",
        326: "producerGroup! topic! defaultTopic! defaultTopicQueueNums:i! queueId:i! sysFlag:i! bornTimestamp:l! flag:i! properties "
        "reconsumeTimes:i unitMode:b bornHost! storeHost! storeTimestamp:l!",
        100: "namespace! key! value!",
        101: "namespace! key!",
        102: "namespace! key!",
        103: "brokerName! brokerAddr! clusterName! haServerAddr! brokerId:l! heartbeatTimeoutMillis:l enableActingMaster:b "
        "compressed:b bodyCrc32:i",
        104: "brokerName! brokerAddr! clusterName! brokerId:l!",
        105: "topic! acceptStandardJsonOnly:b",
        205: "brokerName!",
        216: "topic! clusterName",
        217: "topic!",
        219: "namespace!",
        224: "cluster!",
        322: "brokerName! brokerAddr! clusterName! brokerId:l!",
        327: "brokerName!",
        901: "clusterName! brokerName!",
        904: "clusterName! brokerAddr! brokerName! brokerId:l epoch:i maxOffset:l confirmOffset:l heartbeatTimeoutMills:l "
        "electionPriority:i",
        3004: "username",
        3005: "filter",
        3008: "subject policyType resource",
        3010: "subjectFilter resourceFilter",
    }
    samples = {"": "text", "i": "7", "l": "8000000000", "b": "true"}
    for code, names in expected.items():
        header_class = REQUEST_HEADERS[code]
        parsed = [re.fullmatch(r"(\w+)(?::(\w))?(!?)", name) for name in names.split()]
        fields = {found[1]: samples[found[2] or ""] for found in parsed if found}
        assert list(fields) == list(wire_names(header_class))[: len(fields)], code
        assert set(wire_names(header_class)[len(fields) :]) <= {"lo", "ns", "nsd", "bname", "oway"}, code
        assert write_header(read_header(header_class, make_request(code, fields)), code) == fields
        for found in parsed:
            assert found is not None
            lacking = {name: text for name, text in fields.items() if name != found[1]}
            if found[3] and (code, found[1]) not in NOT_NEEDED:
                with pytest.raises(HeaderError, match=f"field {found[1]} is missing"):
                    read_header(header_class, make_request(code, lacking))
            else:
                assert read_header(header_class, make_request(code, lacking))
            if found[2] in ("i", "l"):
                with pytest.raises(HeaderError, match=f"field {found[1]} is '9"):
                    read_header(header_class, make_request(code, fields | {found[1]: "9" * 20}))


def test_a_request_of_every_code_says_what_any_client_may_say() -> None:
    for code, header_class in REQUEST_HEADERS.items():
        names = wire_names(header_class, code)
        assert len(set(names)) == len(names), code


def test_a_blank_is_no_number_where_there_need_be_none() -> None:
    sent = {"a": "p", "b": "T", "c": "", "d": "", "e": "0", "f": "0", "g": "0", "h": "0", "l": ""}
    header = read_header(SendMessageRequest, make_request(RequestCode.SEND_BATCH_MESSAGE, sent))
    assert (header.default_topic_queue_count, header.max_reconsume_times) == (None, None)
    with pytest.raises(HeaderError, match="field e is ''"):
        read_header(SendMessageRequest, make_request(RequestCode.SEND_BATCH_MESSAGE, sent | {"e": ""}))


def test_a_template_writes_what_the_whole_header_writes() -> None:
    def header(flag: int, properties: str) -> SendMessageRequest:
        return SendMessageRequest(
            producer_group="G",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=1,
            sys_flag=0,
            born_time_ms=5,
            flag=flag,
            properties=properties,
            broker_name="b",
        )

    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        template = HeaderTemplate(header(0, ""), code, ("properties", "flag"))
        for flag, properties in ((0, ""), (-7, "a\x01b\x02")):
            written = template.fill(properties, str(flag))
            assert list(written.items()) == list(write_header(header(flag, properties), code).items())
