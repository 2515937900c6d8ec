"""Static topics: the table as the broker writes it, and what the links of a chain compute.

The text and every number were written by Apache's own classes (TopicQueueMappingSerializeWrapper through its JSON encoder,
LogicQueueMappingItem, rocketmq-remoting 5.3.3), called with the links that stand here.
"""

from __future__ import annotations

import pytest

from storage.errors import StateFileError
from storage.tables.topics import (
    MappingItem,
    TopicQueueMapping,
    TopicQueueMappingTable,
    check_items,
    find_item,
    next_item,
)

JAVA_TEXT = """{
	"dataVersion":{
		"counter":4,
		"stateVersion":0,
		"timestamp":1700000000001
	},
	"topicQueueMappingInfoMap":{
		"Static":{
			"bname":"broker-b",
			"currIdMap":{},
			"dirty":false,
			"epoch":1700000000000,
			"hostedQueues":{0:[
					{
						"bname":"broker-b",
						"endOffset":-1,
						"gen":0,
						"logicOffset":0,
						"queueId":0,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					}
				],1:[
					{
						"bname":"broker-a",
						"endOffset":12345,
						"gen":0,
						"logicOffset":0,
						"queueId":1,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					},
					{
						"bname":"broker-b",
						"endOffset":-1,
						"gen":1,
						"logicOffset":20000,
						"queueId":1,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					}
				],2:[
					{
						"bname":"broker-b",
						"endOffset":7,
						"gen":0,
						"logicOffset":0,
						"queueId":2,
						"startOffset":0,
						"timeOfEnd":1700000000000,
						"timeOfStart":1699999990000
					},
					{
						"bname":"broker-a",
						"endOffset":-1,
						"gen":1,
						"logicOffset":-1,
						"queueId":0,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					}
				]
			},
			"scope":"__global__",
			"topic":"Static",
			"totalQueues":3
		}
	}
}"""

MAPPING = TopicQueueMapping(
    "Static",
    "broker-b",
    3,
    1_700_000_000_000,
    hosted_queues={
        0: (MappingItem("broker-b", 0),),
        1: (
            MappingItem("broker-a", 1, end_offset=12_345),
            MappingItem("broker-b", 1, generation=1, logic_offset=20_000),
        ),
        2: (
            MappingItem("broker-b", 2, end_offset=7, time_of_start=1_699_999_990_000, time_of_end=1_700_000_000_000),
            MappingItem("broker-a", 0, generation=1, logic_offset=-1),
        ),
    },
)

_NO_QUEUES = ('"0":[{"gen":1}]', '"0":null', '"0":5', '"0":{}', '"x":[]', '"99999999999":[]')
PHYSICAL = (0, 4, 5, 7, 9, 10, 12_345, 12_346)
# (logicOffset, startOffset, endOffset) → computeStaticQueueOffsetLoosely, …Strictly, computePhysicalQueueOffset of PHYSICAL
COMPUTED = {
    (0, 0, -1): (PHYSICAL, PHYSICAL, PHYSICAL),
    (0, 0, 12_345): ((0, 4, 5, 7, 9, 10, 12_345, 12_345), PHYSICAL, PHYSICAL),
    (20_000, 0, -1): (
        (20_000, 20_004, 20_005, 20_007, 20_009, 20_010, 32_345, 32_346),
        (20_000, 20_004, 20_005, 20_007, 20_009, 20_010, 32_345, 32_346),
        (-20_000, -19_996, -19_995, -19_993, -19_991, -19_990, -7_655, -7_654),
    ),
    (100, 5, 9): (
        (100, 100, 100, 102, 104, 104, 104, 104),
        (100, 100, 100, 102, 104, 105, 12_440, 12_441),
        (-95, -91, -90, -88, -86, -85, 12_250, 12_251),
    ),
    (100, 5, 5): (
        (100, 100, 100, 100, 100, 100, 100, 100),
        (100, 100, 100, 102, 104, 105, 12_440, 12_441),
        (-95, -91, -90, -88, -86, -85, 12_250, 12_251),
    ),
    (100, 5, 3): (
        (100, 100, 100, 102, 104, 105, 12_440, 12_441),
        (100, 100, 100, 102, 104, 105, 12_440, 12_441),
        (-95, -91, -90, -88, -86, -85, 12_250, 12_251),
    ),
}
# The same links → computeMaxStaticQueueOffset, checkIfEndOffsetDecided, computeOffsetDelta
SUMMED = {
    (0, 0, -1): (0, False, 0),
    (0, 0, 12_345): (12_345, True, 0),
    (20_000, 0, -1): (20_000, False, 20_000),
    (-1, 0, -1): (-1, False, -1),
    (100, 5, 9): (104, True, 95),
    (100, 5, 5): (100, False, 95),
    (100, 5, 3): (100, False, 95),
}


def link(logic: int, start: int, end: int) -> MappingItem:
    return MappingItem("broker-b", logic_offset=logic, start_offset=start, end_offset=end)


def test_a_brokers_table_is_read() -> None:
    table = TopicQueueMappingTable.load(JAVA_TEXT)
    assert table.mappings == {"Static": MAPPING}
    assert table.mappings["Static"].hosted_queues == MAPPING.hosted_queues
    assert table.version.counter == 4


def test_our_table_says_what_the_brokers_says() -> None:
    written = TopicQueueMappingTable().with_mapping(MAPPING, now_ms=5)
    read = TopicQueueMappingTable.load(written.to_text())
    broker = TopicQueueMappingTable.load(JAVA_TEXT)
    assert (
        read.document["topicQueueMappingInfoMap"]["Static"] | {"currIdMap": {}}
        == (broker.document["topicQueueMappingInfoMap"]["Static"])
    )


def test_a_change_raises_the_version_and_keeps_what_it_does_not_know() -> None:
    table = TopicQueueMappingTable.load(JAVA_TEXT).with_mapping(MAPPING, now_ms=1_700_000_009_999)
    assert (table.version.counter, table.version.timestamp_ms) == (5, 1_700_000_009_999)
    assert table.document["topicQueueMappingInfoMap"]["Static"]["currIdMap"] == {}


def test_a_topic_that_goes_leaves_the_others() -> None:
    table = TopicQueueMappingTable.load(JAVA_TEXT)
    other = table.with_mapping(TopicQueueMapping("Other", "broker-b"), now_ms=1)
    assert list(other.without_topic("Static", now_ms=2).mappings) == ["Other"]
    assert table.without_topic("Missing", now_ms=2) is table


@pytest.mark.parametrize(
    "text",
    [
        *('{"topicQueueMappingInfoMap":{"T":{"hostedQueues":{' + queues + "}}}}" for queues in _NO_QUEUES),
        "[]",
    ],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(StateFileError):
        TopicQueueMappingTable.load(text, "config/topicQueueMapping.json")


@pytest.mark.parametrize("numbers", COMPUTED)
def test_offsets_are_computed_as_apaches_class_does(numbers: tuple[int, int, int]) -> None:
    """LogicQueueMappingItem.computeStaticQueueOffsetLoosely, computeStaticQueueOffsetStrictly, computePhysicalQueueOffset."""
    item = link(*numbers)
    computed = (
        tuple(map(item.logical_within, PHYSICAL)),
        tuple(map(item.logical, PHYSICAL)),
        tuple(map(item.physical, PHYSICAL)),
    )
    assert computed == COMPUTED[numbers]


@pytest.mark.parametrize("numbers", SUMMED)
def test_ends_are_computed_as_apaches_class_does(numbers: tuple[int, int, int]) -> None:
    """LogicQueueMappingItem.computeMaxStaticQueueOffset, checkIfEndOffsetDecided, computeOffsetDelta."""
    item = link(*numbers)
    assert (item.end_logic_offset, item.has_end, item.offset_delta) == SUMMED[numbers]


def test_a_link_whose_place_is_not_decided_has_no_logical_offset() -> None:
    """LogicQueueMappingItem.computeStaticQueueOffsetLoosely."""
    assert link(-1, 0, -1).logical_within(17) == -1


@pytest.mark.parametrize(
    ("logical", "generation"),
    [(0, 3), (9_999, 3), (10_000, 4), (29_999, 4), (30_000, 4), (10**12, 4), (-5, 3)],
)
def test_the_link_that_holds_an_offset_is_found(logical: int, generation: int) -> None:
    """TopicQueueMappingUtils.findLogicQueueMappingItem, ignoreNegative: an undecided link holds nothing yet."""
    chain = (
        MappingItem("a", generation=3),
        MappingItem("b", generation=4, logic_offset=10_000),
        MappingItem("c", generation=5, logic_offset=-1),
    )
    found = find_item(chain, logical)
    assert found is not None
    assert found.generation == generation
    assert find_item((chain[2],), logical) is None


def test_the_next_link_is_found_unless_its_place_is_not_decided() -> None:
    """TopicQueueMappingUtils.findNext, ignoreNegative."""
    chain = (
        MappingItem("a", generation=3),
        MappingItem("b", generation=4, logic_offset=10_000),
        MappingItem("c", generation=5, logic_offset=-1),
    )
    assert next_item(chain, chain[0]) == chain[1]
    assert next_item(chain, chain[1]) is None
    assert next_item(chain[:1], chain[0]) is None


@pytest.mark.parametrize(
    ("chain", "is_legal"),
    [
        ((MappingItem("a"),), True),
        ((MappingItem("a", end_offset=5), MappingItem("b", generation=1, logic_offset=10)), True),
        ((MappingItem("a", end_offset=5), MappingItem("b", generation=1, logic_offset=-1)), True),
        ((MappingItem("a", end_offset=10), MappingItem("b", generation=1, logic_offset=10)), False),
        ((MappingItem("a", logic_offset=10), MappingItem("b", generation=1, logic_offset=10)), False),
        ((MappingItem("a", generation=1), MappingItem("b", generation=1, logic_offset=10)), False),
        ((MappingItem("a", logic_offset=-1), MappingItem("b", generation=1, logic_offset=10)), False),
        ((MappingItem("a", start_offset=5, end_offset=4),), False),
        ((MappingItem("a", queue_id=-1),), False),
        ((MappingItem("a", generation=-1),), False),
        ((MappingItem("a", start_offset=-1),), False),
    ],
)
def test_only_chains_that_a_broker_takes_enter_the_table(chain: tuple[MappingItem, ...], is_legal: bool) -> None:
    """TopicQueueMappingUtils.checkLogicQueueMappingItemOffset."""
    if is_legal:
        check_items(chain)
        return
    with pytest.raises(ValueError, match=r"link|generation"):
        TopicQueueMappingTable().with_mapping(TopicQueueMapping("T", "a", hosted_queues={0: chain}), now_ms=0)
