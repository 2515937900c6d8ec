"""A cluster of running brokers as the QueryCluster whose data is pulled. Driver side.

Offsets, positions and continuity are the same as for stores: a queue is (topic, broker name, queue id), and the record before a
position is pulled to recognise a topic that was made again. So one checkpoint works with path and with nameServer if both name the same
brokers. Brokers do not report sizes ahead: lags have no bytes, and maxBytesPerTrigger is refused.

A query's position is stored as a consumer group's by request 15, where `mqadmin consumerProgress` shows it (`LiveGroup`).

Java: DefaultMQAdminExt, DefaultMQPullConsumer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

from spark_mq.client.calls import make_call
from spark_mq.client.errors import BrokerNotFoundError, ResponseError, request_text
from spark_mq.conditions import OptionError
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.administration import CreateTopicRequest, GroupList, TopicRequest
from spark_mq.remoting.consumers import (
    GroupRequest,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from spark_mq.source.cluster_questions import Addresses, Answered, ClusterQuestions, compaction_request, is_compacted
from spark_mq.source.group_offsets import GroupOffsets, WriteOffsets
from spark_mq.source.live_view import LiveView
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.options import SourceOptions
from spark_mq.source.pull_reader import PullSplit
from spark_mq.source.pulled_records import FirstRecord, first_record
from spark_mq.source.pulls import Ask, Lost, PullFilter, PullRequests, PullTerms, check_expression
from spark_mq.source.query_cluster import Piece
from spark_mq.source.ranges import QueueRange
from spark_mq.source.rows import RowRequest, ShownAs
from spark_mq.source.starting_offsets import QueueFacts
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig
from storage.names import MASTER_ID, retry_topic
from storage.rules.response_codes import ResponseCode

OWN_GROUP = "TOOLS_CONSUMER"
"""The group for pulls if the query names none: every broker has it. Java: MixAll.TOOLS_CONSUMER_GROUP."""


class LiveCluster:
    """The brokers that the name servers know, and the topics of one query."""

    def __init__(self, options: SourceOptions) -> None:
        """Waits for brokers that do not answer. Raises the client's errors."""
        self._options = options
        self._group = options.consumer_group or OWN_GROUP
        self._questions = ClusterQuestions(options.client_settings())
        self._view = LiveView(self._questions, options.subscription, options.pull_timeout)
        self._records_before: dict[tuple[QueueId, int], RecordPlace | None] = {}
        self._given_up: set[str] = set()
        self._understand: set[str] = set()
        """Addresses of the masters that understand the query's expression."""
        self._checked_at: Mapping[str, Addresses] = {}
        try:
            self._view.open()
            self._check_expression()
        except BaseException:
            self.close()
            raise

    @property
    def brokers(self) -> Sequence[str]:
        return list(self._view.brokers)

    @property
    def place(self) -> str:
        return f"the cluster of name server {', '.join(self._options.name_server)}"

    @property
    def topics(self) -> Sequence[str]:
        return self._view.all_topics()

    def refresh(self) -> bool:
        changed = self._view.refresh()
        if changed:
            news = self._view.changed
            self._records_before = {key: place for key, place in self._records_before.items() if key[0] not in news}
        if changed or self._checked_at is not self._view.brokers:
            self._check_expression()
        return changed

    def queues(self) -> Sequence[QueueId]:
        return self._view.queues

    def queue_count(self, topic: str) -> int:
        return self._view.read_queue_count(topic)

    def is_system_topic(self, topic: str) -> bool:
        return self._view.is_system_topic(topic)

    def refuse_batch_topics(self, topics: Sequence[str]) -> None:
        """Raises OptionError for a topic whose queues hold batches. Brokers before 5.0 have none, and do not know the request."""
        requests = [make_call(RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=topic)) for topic in topics]
        answers = self._view.patiently(
            lambda: self._questions.ask_all(dict.fromkeys(self._masters() if requests else (), requests))
        )
        for topic, answer in (pair for found in answers.values() for pair in zip(topics, found, strict=True)):
            config = answer.body(TopicConfig) if answer.code == ResponseCode.SUCCESS else TopicConfig()
            if config.is_batched:
                rule = "its queues are batch consume queues (queue.type=BatchCQ), which are not read"
                raise OptionError("topic", f"{topic}: {rule}")

    def refuse_lost_queues(self, brokers: Collection[str]) -> None:
        """Raises BrokerNotFoundError for a broker that is not registered, unless loss is tolerated."""
        for name in sorted(set(brokers) - self._view.brokers.keys()):
            if self._options.fail_on_data_loss:
                raise BrokerNotFoundError(name, MASTER_ID)

    def await_brokers(self, brokers: Collection[str]) -> bool:
        """A broker that is not registered may be starting. One that was waited for in vain is not waited for again."""
        awaited = set(brokers) - self._given_up
        if not awaited:
            return False
        came = self._view.await_brokers(awaited)
        self._given_up |= awaited - came
        if came:
            self._view.open()
            self._records_before.clear()
            self._check_expression()
        return bool(came)

    # Positions

    def minimum(self, queue: QueueId) -> int:
        return self.bounds(queue)[0]

    def earliest(self, queues: Collection[QueueId]) -> Mapping[QueueId, int]:
        """The first message that is there, or the minimum. A broker that deletes a file of its log moves the minimum some time later
        (`offsets.has_expired`); who asks for the earliest message has lost nothing by that.
        """
        return self._view.patiently(lambda: self._earliest(queues))

    def _earliest(self, queues: Collection[QueueId]) -> dict[QueueId, int]:
        found = {queue: self.minimum(queue) for queue in queues}
        left = list(queues)
        while left := [queue for queue in left if found[queue] < self.maximum(queue)]:
            asked: dict[str, list[QueueId]] = {}
            for queue in left:
                asked.setdefault(self._master(queue), []).append(queue)
            pulls = {
                address: [self._pull_one(queue, found[queue]) for queue in ones] for address, ones in asked.items()
            }
            left = []
            for address, answers in self._questions.ask_all(pulls).items():
                for queue, answer in zip(asked[address], answers, strict=True):
                    first = first_record(found[queue], answer.command, address, queue, self._group)
                    if isinstance(first, FirstRecord):
                        found[queue] = first.queue_offset
                    elif isinstance(first, Lost):  # a pull looks at so many entries, and more of them may have expired
                        found[queue] = first.next_offset
                        left.append(queue)
        return found

    def maximum(self, queue: QueueId) -> int:
        return self.bounds(queue)[1]

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        ends = self._view.ends.get(queue)
        return (0, 0) if ends is None else (ends.minimum, ends.maximum)

    def moved_away(self, queue: QueueId) -> str:
        """A broker serves what it has moved."""
        return ""

    def facts(self, queue: QueueId) -> QueueFacts | None:
        if queue not in self._view.ends:
            return None
        return QueueFacts(*self.bounds(queue), lambda offset: self.record_before(queue, offset), None, "nameServer")

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        """The broker's own search, held against the messages around what it finds (`first_not_older`)."""
        ends = self._view.ends.get(queue)
        if ends is None or ends.last_store_time_ms < timestamp_ms or ends.minimum >= ends.maximum:
            return None
        header = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, time_ms=timestamp_ms, is_logical=False)
        request = make_call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        guess = self._ask(queue, request)[0].header(OffsetAnswer).queue_offset
        time_of: Callable[[int], int | None] = lambda offset: self._time_at(queue, offset)  # noqa: E731
        found = first_not_older(timestamp_ms, guess, ends.minimum, ends.maximum, time_of)
        return found if found < ends.maximum else None

    def end_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        return self.offset_by_time(queue, timestamp_ms)

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        """The group's stored offset. For a young queue a broker answers 0 to a group without an offset, so first ask for its groups."""
        requests = [make_call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=queue.topic))]
        header = QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
            is_logical=False,
        )
        requests.append(make_call(RequestCode.QUERY_CONSUMER_OFFSET, header))
        groups, offset = self._ask(queue, *requests)
        if group not in groups.body(GroupList).groups or offset.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return offset.header(OffsetAnswer).queue_offset

    def record_before(self, queue: QueueId, offset: int) -> RecordPlace | None:
        if (queue, offset) not in self._records_before:
            self.look_up({queue: offset})
        return self._records_before[queue, offset]

    def first_from(self, queue: QueueId, offset: int) -> int | None:
        found = self._view.patiently(lambda: self._first_record(queue, offset))
        return found.queue_offset if isinstance(found, FirstRecord) else None

    def is_compacted(self, queue: QueueId) -> bool:
        (answer,) = self._ask(queue, compaction_request(queue.topic))
        return is_compacted(answer)

    def look_up(self, offsets: Mapping[QueueId, int]) -> None:
        self._view.patiently(lambda: self._look_up(offsets))

    def _look_up(self, offsets: Mapping[QueueId, int]) -> None:
        by_master: dict[str, list[tuple[QueueId, int]]] = {}
        for queue, offset in offsets.items():
            if (queue, offset) in self._records_before:
                continue
            if offset > 0 and queue in self._view.ends:
                by_master.setdefault(self._master(queue), []).append((queue, offset))
            else:
                self._records_before[queue, offset] = None
        pulls = {
            address: [self._pull_one(queue, offset - 1) for queue, offset in ones]
            for address, ones in by_master.items()
        }
        for address, answers in self._questions.ask_all(pulls).items():
            for (queue, offset), answer in zip(by_master[address], answers, strict=True):
                found = first_record(offset - 1, answer.command, address, queue, self._group)
                if isinstance(found, FirstRecord) and found.queue_offset == offset - 1:
                    self._records_before[queue, offset] = found.place
                else:  # a gap: what came is the record behind it
                    self._records_before[queue, offset] = None

    def _time_at(self, queue: QueueId, offset: int) -> int | None:
        """When the first message at or behind the offset was stored, None where there is none; 0 of one that is gone by now."""
        found = self._view.patiently(lambda: self._first_record(queue, offset))
        if isinstance(found, Lost):
            return 0
        return None if found is None else found.place[1]

    def _first_record(self, queue: QueueId, offset: int) -> FirstRecord | Lost | None:
        (answer,) = self._questions.ask(self._master(queue), [self._pull_one(queue, offset)])
        return first_record(offset, answer.command, answer.address, queue, self._group)

    def _pull_one(self, queue: QueueId, offset: int) -> RemotingCommand:
        return PullRequests(queue, self._terms(PullFilter())).request(Ask(offset, offset + 1))

    def _ask(self, queue: QueueId, *requests: RemotingCommand) -> list[Answered]:
        return self._view.patiently(lambda: self._questions.ask(self._master(queue), requests))

    def _masters(self) -> list[str]:
        """Masters of the brokers that have queues of the query, because others may be away; all masters where none has."""
        names = {queue.broker_name for queue in self._view.queues} or self._view.brokers.keys()
        return sorted({self._view.brokers[name][MASTER_ID] for name in names if MASTER_ID in self._view.brokers[name]})

    def _master(self, queue: QueueId) -> str:
        return self._view.master_of(queue.broker_name)

    # Sizes: brokers tell none ahead

    @property
    def tells_sizes(self) -> bool:
        return False

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        raise TypeError("a running broker tells no sizes; tells_sizes is False")

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        raise TypeError("a running broker tells no sizes; maxBytesPerTrigger is refused")

    # Reading

    def physical(self, piece: QueueRange) -> list[tuple[QueueRange, ShownAs | None]]:
        return [(piece, None)]

    def physical_positions(self, offsets: Mapping[QueueId, int]) -> Mapping[QueueId, int]:
        return offsets

    def split(self, piece: Piece, request: RowRequest) -> PullSplit:
        queue, ranges, _ = piece
        rank = self.brokers.index(queue.broker_name)
        addresses = tuple(self._view.brokers[queue.broker_name].items())
        return PullSplit(self._terms(self._filter(queue, request)), queue, rank, addresses, ranges, request)

    def offsets_with_key(self, piece: QueueRange, key: str) -> tuple[tuple[int, int], ...]:
        """All of it: a broker's index says neither how far it reaches nor whether it is on."""
        return ((piece.start, piece.end),)

    def _terms(self, filter_: PullFilter) -> PullTerms:
        options = self._options
        return PullTerms(self._questions.settings, self._group, filter_, options.pull_timeout, options.pull_from_slave)

    def _filter(self, queue: QueueId, request: RowRequest) -> PullFilter:
        """Entries of the schedule topic have times of delivery in place of tags, so brokers filter nothing there."""
        options = self._options
        if options.sub_expression is not None and options.expression_type != "TAG":
            return PullFilter(options.sub_expression, options.expression_type)
        if not request.tags or queue.topic == SCHEDULE_TOPIC:
            return PullFilter()
        return PullFilter(" || ".join(sorted(request.tags)))

    def _check_expression(self) -> None:
        """Ask each broker before the first pull, because one with an expression that does not compile filters nothing.

        Raises ResponseError.
        """
        self._checked_at = self._view.brokers
        expression, kind = self._options.sub_expression, self._options.expression_type
        if expression is not None and kind != "TAG":
            self._view.patiently(lambda: self._ask_masters(PullFilter(expression, kind)))

    def _ask_masters(self, filter_: PullFilter) -> None:
        topics = sorted({queue.topic for queue in self._view.queues}) or [
            self._group
        ]  # brokers look at the expression alone
        request = check_expression(topics[0], self._group, filter_)
        new = [address for address in self._masters() if address not in self._understand]
        for address, answers in self._questions.ask_all({address: [request] for address in new}).items():
            answers[0].expect()
            self._understand.add(address)

    # Groups

    def group_offsets(self, group: str) -> GroupOffsets:
        made: dict[str, LiveGroup] = {}

        def writer_of(
            broker_name: str,
        ) -> WriteOffsets:  # made at first use: brokers join while a query runs
            if broker_name not in made:
                made[broker_name] = LiveGroup(self._questions, self._view, broker_name)
            return made[broker_name].write

        return GroupOffsets(group, writer_of)

    def close(self) -> None:
        self._questions.close()


def first_not_older(
    timestamp_ms: int, guess: int, minimum: int, maximum: int, time_of: Callable[[int], int | None]
) -> int:
    """The first offset of [minimum, maximum) that is not older than a time, from a guess that may be wrong; `maximum` where all are.

    Brokers search for a time themselves. Releases before 5.0 give the nearest message, any of those of one millisecond, and begin in
    the file that the files' own times lead to, which copies do not keep. So their answer is where the search begins, and mostly ends.

    `time_of` gives the store time of the first message at or after an offset, None if there is none. If the guess is right, it is
    called twice; otherwise twice the logarithm of the distance.

    Java: MessageStore.getOffsetInQueueByTime, ConsumeQueue of 4.9.
    """

    @cache
    def is_older(offset: int) -> bool:
        time_ms = time_of(offset) if offset < maximum else None
        return time_ms is not None and time_ms < timestamp_ms

    low, high, step = minimum, maximum, 1
    probe = min(max(guess, minimum), maximum)
    if is_older(probe):
        while probe < maximum and is_older(probe):
            low, probe, step = probe + 1, min(probe + step, maximum), 2 * step
        high = probe
    else:
        while probe > minimum and not is_older(max(probe - step, minimum)):
            probe, step = max(probe - step, minimum), 2 * step
        low, high = (max(probe - step, minimum) + 1 if probe > minimum else minimum), probe
    while low < high:
        middle = (low + high) // 2
        if is_older(middle):
            low = middle + 1
        else:
            high = middle
    return low


_READ_WRITE = 6
_WAS_RESET = "Offset has been previously reset"


class LiveGroup:
    """Writes one group's offsets at one broker; looks up the broker's address at each write."""

    def __init__(self, questions: ClusterQuestions, view: LiveView, broker_name: str) -> None:
        self._questions = questions
        self._view = view
        self._broker_name = broker_name
        self._is_made = False

    def write(self, group: str, offsets: Mapping[tuple[str, int], int], now_ms: int) -> None:
        """Store the next offsets by (topic, queue id). Raises the client's errors."""
        if not self._is_made:
            self._is_made = self._make(group)
        requests = [
            make_call(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetRequest(
                    consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=next_offset, is_logical=False
                ),
            )
            for (topic, queue_id), next_offset in offsets.items()
        ]
        for answer in self._questions.ask(self._address(), requests):
            answer.expect()
            if _WAS_RESET in (answer.command.remark or ""):
                what = request_text(RequestCode.UPDATE_CONSUMER_OFFSET)
                raise ResponseError(answer.code, answer.command.remark, answer.address, what, None, group)

    def _make(self, group: str) -> bool:
        """Make what is not there; whether that was done blindly."""
        config = SubscriptionGroupConfig(group=group)
        retry = retry_topic(group)
        entry, topic = self._questions.ask(
            self._address(),
            [
                make_call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group=group)),
                make_call(RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=retry)),
            ],
        )
        is_old = ResponseCode.REQUEST_CODE_NOT_SUPPORTED in (entry.code, topic.code)  # up to 4.9: both are made again
        if entry.code == ResponseCode.SUCCESS:
            config = entry.body(SubscriptionGroupConfig)
        if topic.code != ResponseCode.SUCCESS:
            header = CreateTopicRequest(
                topic=retry,
                default_topic=group,
                read_queue_count=config.retry_queue_count,
                write_queue_count=config.retry_queue_count,
                perm=_READ_WRITE,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
            )
            self._questions.ask(self._address(), [make_call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)])[0].expect()
        if entry.code != ResponseCode.SUCCESS or is_old:
            request = make_call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
            self._questions.ask(self._address(), [request])[0].expect()
        return is_old

    def _address(self) -> str:
        return self._view.master_of(self._broker_name)
