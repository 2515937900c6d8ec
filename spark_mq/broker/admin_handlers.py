"""Requests about the broker itself: settings, figures, questions that it passes on to clients, and the data that slaves copy.

Java: AdminBrokerProcessor (25, 26, 28, 45, 60, 61, 223, 307, 309, 402, 906, 907, 1007), Broker2Client, SlaveSynchronize.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.broker.broker_settings import requested_settings, settings_text
from spark_mq.broker.broker_store import BrokerStore, ServerFacts
from spark_mq.broker.client_tables import Clients, too_old_to_ask
from spark_mq.broker.put_plan import CURRENT_VERSION, DiskUse
from spark_mq.broker.request_table import Pool
from spark_mq.broker.requests import UNSET, AskClients, Handler, Outcome, Request
from spark_mq.broker.traffic import DayTotals, Traffic
from spark_mq.client.errors import request_text
from spark_mq.remoting import (
    BodyError,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    make_request,
    read_body,
    write_header,
)
from spark_mq.remoting.administration import BrokerConfigAnswer, HaClientInfo, HaInfo, HaRuntimeInfo
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import CREDENTIALS
from spark_mq.remoting.consumers import ConsumerRunningInfoRequest, ConsumerStatus, ConsumerStatusRequest
from spark_mq.remoting.messages import ConsumeDirectlyRequest
from spark_mq.remoting.routes import KvTable
from storage.errors import ConfigurationError, StateFileError
from storage.files.local_file_system import disk_room_bytes, disk_used_percent
from storage.format.delay import CHECKPOINT, SCHEDULE_TOPIC
from storage.format.fastjson import to_text
from storage.format.record import decode_offset_message_id
from storage.format.typed_json import DataVersion
from storage.rules.response_codes import ResponseCode
from storage.settings.java_settings import refusal_of_change
from storage.tables.masters import DELAYS_FILE, REQUEST_MODES_FILE, TIMER_METRICS_FILE, DelayOffsets

_NO_DELAYS = '{"offsetTable":{}}'
_NO_MODES = '{"messageRequestModeMap":{}}'
_CALL_MS, _STATUS_MS = 10_000, 5_000
_RELEASE = "V5_3_3"
_POOLS = {
    "send": Pool.SEND,
    "pull": Pool.PULL,
    "litePull": Pool.LITE_PULL,
    "query": Pool.QUERY,
    "ack": None,
}


class AdminHandlers:
    """Answers what operators ask of the broker itself, and of clients through it."""

    def __init__(self, store: BrokerStore, clients: Clients, traffic: Traffic, server: ServerFacts) -> None:
        self._store = store
        self._clients = clients
        self._traffic = traffic
        self._server = server

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.UPDATE_BROKER_CONFIG: self.update_settings,
            code.GET_BROKER_CONFIG: self.settings,
            code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            code.GET_BROKER_HA_STATUS: self.ha_status,
            code.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            code.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            code.GET_CONSUMER_RUNNING_INFO: self.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    # The broker

    def settings(self, request: Request) -> RemotingCommand:
        """26."""
        text = settings_text(self._store.config)
        version = to_text(self._store.settings_version.to_document())
        return request.answer(header=BrokerConfigAnswer(version=version), body=text.encode())

    def update_settings(self, request: Request) -> RemotingCommand:
        """25."""
        try:
            changes = requested_settings(request.body)
            refusal = refusal_of_change(changes, self._store.config.clients.config_black_list)
            if refusal is not None:
                return request.answer(ResponseCode.NO_PERMISSION, refusal)
            self._store.change_settings(changes, request.now_ms)
        except (ConfigurationError, ValueError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        if "brokerPermission" in changes:
            self._clients.register_topics()
        return request.answer()

    def runtime_info(self, request: Request) -> RemotingCommand:
        """28."""
        return request.answer(
            body=KvTable(table=runtime_info(self._store, self._clients, self._traffic, self._server, request.now_ms))
        )

    def ha_status(self, request: Request) -> RemotingCommand:
        """907."""
        slaves = tuple(self._server.slaves())
        body = HaRuntimeInfo(
            is_master=not self._store.is_slave,
            master_commitlog_max_offset=self._store.served.log_end,
            in_sync_slave_count=sum(slave.in_sync for slave in slaves),
            connections=slaves,
            client=HaClientInfo(),
        )
        return request.answer(body=body)

    def ha_info(self, request: Request) -> RemotingCommand:
        """906: where the log is served. A slave ignores the request's master: a controller or a name server names its master."""
        if self._store.is_slave:
            return request.answer()
        info = HaInfo(
            master_ha_address=self._server.ha_address,
            master_flush_offset=self._store.served.log_end,
            master_address=self._store.address,
        )
        return request.answer(header=info)

    def delay_offsets(self, request: Request) -> RemotingCommand:
        """45: delayOffset.json as stored on disk. Only slaves send this request, so the connection's host is noted as a slave's.

        Departure: refused while this master takes over what slaves have delivered. Java answers, and the slave replaces its later
        progress, so that what it has delivered is delivered again.
        """
        self._clients.note_slave(request.connection)
        if self._server.takes_back:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, "the master takes over first what its slaves have delivered"
            )
        text = self._store.service.state(DELAYS_FILE, lambda text, _: text)
        return request.answer(body=(text or _NO_DELAYS).encode())

    # Clients

    def running_info(self, request: Request) -> Outcome:
        """307: handed on to the client."""
        header: ConsumerRunningInfoRequest = request.header
        return self._ask_consumer(request, header.consumer_group, header.client_id)

    def consume_directly(self, request: Request) -> Outcome:
        """309: handed on to the client, with the message."""
        header: ConsumeDirectlyRequest = request.header
        fields = dict(request.command.ext_fields or {}) | {"brokerName": self._store.broker_name}
        if header.topic and (topic := self._store.service.settings.topics.topics.get(header.topic)) is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        if header.consumer_group and (group := self._store.find_group(header.consumer_group)) is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        try:
            _, _, place = decode_offset_message_id(header.message_id or "")
        except ValueError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        record = self._store.served.record_at(place)
        if record is None:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {place}")
        return self._ask_consumer(request, header.consumer_group, header.client_id or "", fields, record)

    def _ask_consumer(
        self,
        request: Request,
        group: str,
        client_id: str,
        fields: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Outcome:
        with self._clients.lock:
            client = self._clients.consumers.find(group, client_id)
        if client is None:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < ProtocolVersion.V3_1_8_SNAPSHOT:
            remark = (
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        command = request.command
        sent = command.ext_fields if fields is None else fields
        question = make_request(
            command.code,
            sent and {name: text for name, text in sent.items() if name not in CREDENTIALS},
            command.body if body is None else body,
            encoding=self._clients.encoding,
        )

        def answer(answers: tuple[RemotingCommand | None, ...]) -> RemotingCommand:
            (found,) = answers
            if found is None:
                remark = f"consumer <{group}> <{client_id}> Timeout: it did not answer within {_CALL_MS} ms"
                return request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
            return request.answer(found.code, found.remark, found.ext_fields, bytes(found.body))

        return AskClients(((client.connection, question),), _CALL_MS, answer)

    def consumer_status(self, request: Request) -> Outcome:
        """223: where a group's clients are; one of them, or all."""
        header: ConsumerStatusRequest = request.header
        wanted = (header.client_address or "").strip()
        with self._clients.lock:
            group = self._clients.consumers.groups.get(header.group)
            clients = list(group.clients.values()) if group is not None else []
        if not clients:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        for client in clients:
            if (refusal := too_old_to_ask(client)) is not None:
                return request.answer(ResponseCode.SYSTEM_ERROR, refusal)
        clients = [client for client in clients if wanted in ("", client.client_id)]
        fields = write_header(ConsumerStatusRequest(topic=header.topic, group=header.group))
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        question = make_request(code, fields, encoding=self._clients.encoding)

        def answer(answers: tuple[RemotingCommand | None, ...]) -> RemotingCommand:
            table: dict[str, Mapping[MessageQueue, int]] = {}
            for client, found in zip(clients, answers, strict=True):
                if found is not None and found.code == ResponseCode.SUCCESS and found.body:
                    try:
                        table[client.client_id] = read_body(ConsumerStatus, found.body).message_queue_table
                    except BodyError:
                        continue  # a client that says nothing that can be read says nothing
            return request.answer(remark=UNSET, body=ConsumerStatus(consumer_table=table))

        return AskClients(tuple((client.connection, question) for client in clients), _STATUS_MS, answer)


class ReplicaHandlers:
    """Answers what slaves ask their master for, and operators of a group ask of its brokers: state files and epochs.

    906, 907 and the other state files are among those of `AdminHandlers`.
    """

    def __init__(self, store: BrokerStore, server: ServerFacts) -> None:
        self._store = store
        self._server = server

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            code.GET_TIMER_METRICS: self.timer_metrics,
            code.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            code.GET_BROKER_EPOCH_CACHE: self.epochs,
        }

    def timer_checkpoint(self, request: Request) -> RemotingCommand:
        """60: the seven numbers of config/timercheck, zeros where it is not there."""
        page = self._server.timer_page()
        return request.answer(body=page[: CHECKPOINT.itemsize].ljust(CHECKPOINT.itemsize, b"\0"))

    def timer_metrics(self, request: Request) -> RemotingCommand:
        """61: config/timermetrics."""
        if not self._store.config.timer.timer_wheel_enable:
            return request.answer(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        text = self._store.service.state(TIMER_METRICS_FILE, lambda text, _: text)
        none = to_text({"dataVersion": DataVersion().to_document(), "timingCount": {}})
        return request.answer(body=(text or none).encode())

    def request_modes(self, request: Request) -> RemotingCommand:
        """402: config/messageRequestMode.json. A broker of ours only lets clients pull, but keeps what was set."""
        text = self._store.service.state(REQUEST_MODES_FILE, lambda text, _: text)
        return request.answer(body=(text or _NO_MODES).encode())

    def epochs(self, request: Request) -> RemotingCommand:
        """1007: where in the log each epoch begins and ends. Java: `mqadmin getBrokerEpoch`."""
        found = self._server.epochs()
        if found is None:
            return request.answer(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        return request.answer(body=found)


def runtime_info(
    store: BrokerStore, clients: Clients, traffic: Traffic, server: ServerFacts, now_ms: int
) -> dict[str, str]:
    """Runtime figures by Java's names. Those of POP are 0, and `dispatchMaxBuffer`, which Java counts nowhere.

    Four names are added: followingTrouble (why a slave cannot follow), storeFailure (while the store refuses puts), storeReopened (when
    and why the store was opened again in this process), requestsNotSupported (number of such answers by request code).
    """
    served, service = store.served, store.service
    put, size = service.appended.times, service.appended.value
    with clients.lock:
        rates = traffic.rates.texts()
    info = {
        "bootTimestamp": str(store.started_ms),
        "runtime": _span(now_ms - store.started_ms),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": _RELEASE,
        "putMessageTimesTotal": str(max(1, put)),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(1, put)),
        **traffic.times.texts(),
        "dispatchMaxBuffer": "0",
        **rates,
        **_totals("Put", traffic.totals[0]),
        **_totals("Get", traffic.totals[1]),
        "dispatchBehindBytes": str(max(0, served.log_end - service.dispatched_end)),
        "pageCacheLockTimeMills": str(service.held_ms),
        "earliestMessageTimeStamp": str(store.earliest_store_time_ms()),
        "startAcceptSendRequestTimeStamp": str(store.config.send.start_accept_send_request_time_stamp),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "remainTransientStoreBufferNumbs": str(service.free_buffers),
        "remainHowManyDataToFlush": _readable(service.unsynced_bytes),
        "commitLogMinOffset": str(served.log_minimum if served.log_end else -1),
        "commitLogMaxOffset": str(served.log_end),
        "EndTransactionQueueSize": str(server.pool_load(Pool.END_TRANSACTION)[0]),
        "EndTransactionThreadPoolQueueCapacity": str(Pool.END_TRANSACTION.capacity),
    }
    if (held_bytes := service.held_bytes) is not None:
        info["remainHowManyDataToCommit"] = _readable(held_bytes)
    info |= _delays(store)
    used = _disk_use(store)
    total, free = disk_room_bytes(service.root)
    info["commitLogDirCapacity"] = f"Total : {_readable(total)}, Free : {_readable(free)}."
    info |= {"commitLogDiskRatio": f"{used.log_used:.2f}", "consumeQueueDiskRatio": f"{used.queues_used:.2f}"}
    info |= {f"commitLogDiskRatio_{path}": f"{_used(path):.2f}" for path in service.settings.log_directories}
    for name, pool in _POOLS.items():
        waiting, head_ms = (0, 0) if pool is None else server.pool_load(pool)
        info[f"{name}ThreadPoolQueueSize"] = str(waiting)
        info[f"{name}ThreadPoolQueueCapacity"] = str(100_000 if pool is None else pool.capacity)
        info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(head_ms)
    if (trouble := server.following_trouble()) is not None:
        info["followingTrouble"] = trouble
    if (failure := service.failure) is not None:
        info["storeFailure"] = str(failure)
    if server.store_reopened is not None:
        info["storeReopened"] = server.store_reopened
    if unsupported := server.unsupported():
        info["requestsNotSupported"] = ", ".join(
            f"{request_text(code) if code >= 0 else 'others'}: {count}" for code, count in sorted(unsupported.items())
        )
    return info


def _delays(store: BrokerStore) -> dict[str, str]:
    """For each delay level with deliveries: how far they are, and the queue's end. Java: ScheduleMessageService.buildRunningStats."""
    service, served = store.service, store.served
    try:
        offsets = service.state(DELAYS_FILE, DelayOffsets.load) or DelayOffsets()
    except StateFileError:  # their delivery says so, again and again
        return {}
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{served.maximum(SCHEDULE_TOPIC, level - 1)}"
        for level, offset in sorted(offsets.offsets.items())
    }


def _totals(kind: str, totals: DayTotals) -> dict[str, str]:
    moments = ("YesterdayMorning", "TodayMorning", "TodayNow")
    return {f"msg{kind}Total{moment}": str(count) for moment, count in zip(moments, totals, strict=True)}


def _disk_use(store: BrokerStore) -> DiskUse:
    log = min(_used(path) for path in store.service.settings.log_directories)
    return DiskUse(log, _used(f"{store.service.root}/consumequeue"))


def _used(path: str) -> float:
    """The used share of the disk, 0 to 1; −1 if it is not known."""
    used = disk_used_percent(path)
    return used / 100 if used >= 0 else used


def _readable(size_bytes: int) -> str:
    """Java: MixAll.humanReadableByteCount."""
    power = min((max(1, size_bytes).bit_length() - 1) // 10, 6)
    return f"{size_bytes} B" if not power else f"{size_bytes / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def _span(elapsed_ms: int) -> str:
    seconds = max(0, elapsed_ms) // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
