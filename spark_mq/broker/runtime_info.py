"""A broker's figures as operators are told them. Java: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService, RunningStats."""

from __future__ import annotations

from spark_mq.broker.parts import BrokerParts
from spark_mq.broker.put_response import DiskUse
from spark_mq.broker.request_table import Pool
from spark_mq.broker.retry import CURRENT_VERSION
from storage.files.disk_use import disk_room_bytes, disk_used_percent
from storage.format.record import decode_record

_RELEASE = "V5_3_3"
_POOLS = {
    "send": Pool.SEND,
    "pull": Pool.PULL,
    "litePull": Pool.LITE_PULL,
    "query": Pool.QUERY,
    "ack": None,
}


def runtime_info(parts: BrokerParts, now_ms: int) -> dict[str, str]:
    """By Java's names. What this broker does not have (POP, latencies of single puts) is told as nothing."""
    puts, traffic, served, service = parts.statistics, parts.traffic, parts.served, parts.service
    put, pulled, size = (
        puts.broker_put_nums,
        traffic.pulled_messages,
        sum(found.value for found in list(puts.topic_put_size.values())),
    )
    cluster = service.settings.cluster
    rates = {
        "putTps": traffic.per_second("BROKER_PUT_NUMS", cluster),
        "getTransferredTps": traffic.per_second("BROKER_GET_NUMS", cluster),
    }
    info = {
        "bootTimestamp": str(parts.started_ms),
        "runtime": _span(now_ms - parts.started_ms),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": _RELEASE,
        "putMessageTimesTotal": str(max(1, put)),
        "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(1, put)),
        "putMessageEntireTimeMax": "0",
        "getMessageEntireTimeMax": "0",
        "putMessageDistributeTime": "null",
        "putLatency99": "0.00",
        "putLatency999": "0.00",
        "dispatchMaxBuffer": "0",
        **{name: " ".join([str(rate)] * 3) for name, rate in rates.items()},
        **dict.fromkeys(("getFoundTps", "getMissTps", "getTotalTps"), "0.0 0.0 0.0"),
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(put),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(pulled),
        "dispatchBehindBytes": str(max(0, served.log_end - service.dispatched_end)),
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(_earliest(parts)),
        "startAcceptSendRequestTimeStamp": str(parts.config.send.start_accept_send_request_time_stamp),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "remainTransientStoreBufferNumbs": str(2**31 - 1),
        "remainHowManyDataToFlush": "0 B",
        "commitLogMinOffset": str(served.log_minimum if served.log_end else -1),
        "commitLogMaxOffset": str(served.log_end),
        "EndTransactionQueueSize": str(parts.pool_load(Pool.END_TRANSACTION)[0]),
        "EndTransactionThreadPoolQueueCapacity": str(Pool.END_TRANSACTION.capacity),
    }
    used = _disk_use(parts)
    total, free = disk_room_bytes(service.root)
    info["commitLogDirCapacity"] = f"Total : {_readable(total)}, Free : {_readable(free)}."
    info |= {"commitLogDiskRatio": f"{used.log_used:.2f}", "consumeQueueDiskRatio": f"{used.queues_used:.2f}"}
    for name, pool in _POOLS.items():
        waiting, head_ms = (0, 0) if pool is None else parts.pool_load(pool)
        info[f"{name}ThreadPoolQueueSize"] = str(waiting)
        info[f"{name}ThreadPoolQueueCapacity"] = str(100_000 if pool is None else pool.capacity)
        info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(head_ms)
    return info


def _disk_use(parts: BrokerParts) -> DiskUse:
    log = min(disk_used_percent(path) for path in parts.service.settings.log_directories)
    queues = disk_used_percent(f"{parts.service.root}/consumequeue")
    return DiskUse(*(used / 100 if used >= 0 else used for used in (log, queues)))


def _earliest(parts: BrokerParts) -> int:
    record = parts.served.record_at(parts.served.log_minimum)
    found = None if record is None else decode_record(record)
    return getattr(found, "store_time_ms", -1)


def _readable(size_bytes: int) -> str:
    """Java: MixAll.humanReadableByteCount."""
    power = min((max(1, size_bytes).bit_length() - 1) // 10, 6)
    return f"{size_bytes} B" if not power else f"{size_bytes / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def _span(elapsed_ms: int) -> str:
    seconds = max(0, elapsed_ms) // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
