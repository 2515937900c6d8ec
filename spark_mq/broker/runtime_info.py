"""A broker's figures as operators are told them. Java: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService, RunningStats."""

from __future__ import annotations

from spark_mq.broker.parts import BrokerParts
from spark_mq.broker.put_response import DiskUse
from spark_mq.broker.request_table import Pool
from spark_mq.broker.retry import CURRENT_VERSION
from spark_mq.broker.traffic import DayTotals
from spark_mq.client.errors import request_text
from storage.errors import StateFileError
from storage.files.local_file_system import disk_room_bytes, disk_used_percent
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import decode_record
from storage.tables.delay_progress import FILE_NAME as DELAYS_FILE
from storage.tables.delay_progress import DelayOffsets

_RELEASE = "V5_3_3"
_POOLS = {
    "send": Pool.SEND,
    "pull": Pool.PULL,
    "litePull": Pool.LITE_PULL,
    "query": Pool.QUERY,
    "ack": None,
}


def runtime_info(parts: BrokerParts, now_ms: int) -> dict[str, str]:
    """By Java's names. What this broker does not have (POP, latencies of single puts) is told as nothing.

    Four names are ours: followingTrouble, of a slave that cannot follow; storeFailure, while the store takes nothing; storeReopened,
    when it was opened again since the process began, and why; requestsNotSupported, by code how many requests were answered so.
    """
    puts, traffic, served, service = parts.statistics, parts.traffic, parts.served, parts.service
    put, size = puts.broker_put_nums, sum(found.value for found in list(puts.topic_put_size.values()))
    with parts.lock:
        rates = traffic.rates.texts()
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
        **rates,
        **_totals("Put", traffic.totals[0]),
        **_totals("Get", traffic.totals[1]),
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
        "remainHowManyDataToFlush": _readable(max(0, served.log_end - service.store.writer.synced_end)),
        "commitLogMinOffset": str(served.log_minimum if served.log_end else -1),
        "commitLogMaxOffset": str(served.log_end),
        "EndTransactionQueueSize": str(parts.pool_load(Pool.END_TRANSACTION)[0]),
        "EndTransactionThreadPoolQueueCapacity": str(Pool.END_TRANSACTION.capacity),
    }
    info |= _delays(parts)
    used = _disk_use(parts)
    total, free = disk_room_bytes(service.root)
    info["commitLogDirCapacity"] = f"Total : {_readable(total)}, Free : {_readable(free)}."
    info |= {"commitLogDiskRatio": f"{used.log_used:.2f}", "consumeQueueDiskRatio": f"{used.queues_used:.2f}"}
    info |= {f"commitLogDiskRatio_{path}": f"{_used(path):.2f}" for path in service.settings.log_directories}
    for name, pool in _POOLS.items():
        waiting, head_ms = (0, 0) if pool is None else parts.pool_load(pool)
        info[f"{name}ThreadPoolQueueSize"] = str(waiting)
        info[f"{name}ThreadPoolQueueCapacity"] = str(100_000 if pool is None else pool.capacity)
        info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(head_ms)
    if (trouble := parts.following_trouble()) is not None:
        info["followingTrouble"] = trouble
    if (failure := service.failure) is not None:
        info["storeFailure"] = str(failure)
    if parts.store_reopened is not None:
        info["storeReopened"] = parts.store_reopened
    if unsupported := parts.unsupported():
        info["requestsNotSupported"] = ", ".join(
            f"{request_text(code) if code >= 0 else 'others'}: {count}" for code, count in sorted(unsupported.items())
        )
    return info


def _delays(parts: BrokerParts) -> dict[str, str]:
    """Of each delay level that was delivered: how far, and the queue's end. Java: ScheduleMessageService.buildRunningStats."""
    service, served = parts.service, parts.served
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


def _disk_use(parts: BrokerParts) -> DiskUse:
    log = min(_used(path) for path in parts.service.settings.log_directories)
    return DiskUse(log, _used(f"{parts.service.root}/consumequeue"))


def _used(path: str) -> float:
    """Of the disk, a share of 1; −1 if it is not known."""
    used = disk_used_percent(path)
    return used / 100 if used >= 0 else used


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
