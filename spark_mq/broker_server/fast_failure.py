"""Sends are refused at once while the log takes none: at the door, and out of their queue. Java: SendMessageProcessor.rejectRequest,
BrokerFastFailure.cleanExpiredRequest.

One put may hold the log for as long as a disk takes; behind it every other send would wait, and its client with it. What has waited for
too long is refused by the pool itself (`remoting_server/pools.py`).
"""

from __future__ import annotations

from functools import partial

from spark_mq.broker.request_table import SENDS
from spark_mq.remoting import RequestCode
from spark_mq.remoting_server.pools import RequestPool, busy_remark
from storage.service.put_service import PutService

REJECTED_CODES = frozenset((*SENDS, RequestCode.CONSUMER_SEND_MSG_BACK))
"""Answered REJECTREQUEST, unread."""


def takes_none(service: PutService) -> bool:
    """Whether one put has held the log for longer than osPageCacheBusyTimeOutMills, or the transient store pool is full."""
    return service.is_os_page_cache_busy or service.is_pool_deficient


def relieve(service: PutService, sends: RequestPool) -> None:
    """The sends that wait are refused, if one put has held the log for too long."""
    if sends.size and service.is_os_page_cache_busy:
        sends.refuse_all(partial(busy_remark, "PCBUSY_CLEAN_QUEUE"))
