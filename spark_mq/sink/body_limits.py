"""How large a row may be at the brokers of its topic, and so how large a batch: each broker is asked for its configuration.

    the broker says it (request 26)      its maxMessageSize, or the option maxMessageSize if that is lower
    it does not (ACL, a proxy, silence)  the option maxMessageSize, else Java's default of 4 MiB
    a topic of several brokers           the lowest of them
    always                               what a frame of 16 MiB carries

A process asks a broker once, and again after half a minute; one that is silent twice or away is asked by each task. The broker
judges the body as it is stored, after compression, and a batch by all of its bytes. What does not fit into a file of its log
(mappedFileSizeCommitLog) Java's broker acknowledges and does not store: CommitLog.asyncPutMessage takes a second END_OF_FILE for
PUT_OK. So the file's size is a limit here.
Java: MessageExtEncoder.encode, MessageStoreConfig. Departure: Java's producer knows its own setting alone, and judges a body before it
compresses it (Validators.checkMessage).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from spark_mq.client.calls import make_call
from spark_mq.client.errors import ClientError, RequestTimeoutError, request_text, response_error
from spark_mq.client.instance import ClientInstance
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode
from spark_mq.remoting.frames import MOST_BODY_BYTES
from storage.rules.response_codes import ResponseCode
from storage.rules.sizes import MAX_MESSAGE_SIZE

ASKED_AGAIN_S = 30.0
_SETTING = re.compile(rb"^(maxMessageSize|mappedFileSizeCommitLog)=([0-9]{1,10})\s*$", re.MULTILINE)
_ADDED_BYTES = 1_024
"""Properties that a broker adds to a record, at most: cluster, region, trace, and those of a delay."""
_RECORDS_OVER_ITEMS = 8


class BodyLimit(NamedTuple):
    """The largest body, as stored."""

    size_bytes: int
    cure: str
    """Whose limit it is, and what raises it; for texts."""
    log_file_size: int | None = None
    """The smallest file of a broker's log, less what the broker adds to a record; None = none is known."""

    @property
    def batch_bytes(self) -> int:
        """The largest batch: its records are up to eight times as large as its items, and lie in one file."""
        most = self.size_bytes
        return most if self.log_file_size is None else min(most, self.log_file_size // _RECORDS_OVER_ITEMS)


class Told(NamedTuple):
    """What a broker says of itself."""

    max_message_size: int | None
    reason: str = ""
    """Why it says nothing."""
    log_file_size: int | None = None


_told: dict[tuple[ClientSettings, str], tuple[float, Told]] = {}
"""What brokers said and when, by the client's settings and the broker's name. Of the whole process: Spark uses its workers again."""


def limit_of(told: dict[str, Told], option: int | None) -> BodyLimit:
    """The limit at brokers that have told this, by their names, under the option. Pure."""
    limits = [_of_broker(name, one, option) for name, one in sorted(told.items())]
    limits.append(BodyLimit(MOST_BODY_BYTES, "a frame carries no more"))
    files = [one.log_file_size for one in told.values() if one.log_file_size is not None]
    least = min(limits, key=lambda limit: limit.size_bytes)
    return least._replace(log_file_size=min(files) - _ADDED_BYTES) if files else least


def _of_broker(name: str, told: Told, option: int | None) -> BodyLimit:
    if told.max_message_size is None:
        if option is not None:
            return BodyLimit(option, "option maxMessageSize")
        rule = f"broker {name} does not say its own ({told.reason}): give the option maxMessageSize"
        return BodyLimit(MAX_MESSAGE_SIZE, rule)
    if option is not None and option < told.max_message_size:
        return BodyLimit(option, "option maxMessageSize")
    return BodyLimit(told.max_message_size, f"raise it in the configuration of broker {name}")


async def ask_for_limits(instance: ClientInstance, broker_names: Iterable[str]) -> dict[str, Told]:
    """What the masters of these names say, as they were asked last within half a minute. A broker that fails says nothing."""
    names = sorted(set(broker_names))
    return dict(zip(names, await asyncio.gather(*(_asked(instance, name) for name in names)), strict=True))


async def _asked(instance: ClientInstance, name: str) -> Told:
    key = instance.settings, name
    known = _told.get(key)
    if known is None or time.monotonic() - known[0] > ASKED_AGAIN_S:
        try:
            known = _told[key] = time.monotonic(), await _ask(instance, name)
        except ClientError as error:  # it may pass: nothing to remember
            return Told(None, error.describe())
    return known[1]


async def _ask(instance: ClientInstance, name: str) -> Told:
    """Raises ClientError where there is no answer; one that does not come in time is asked for once more."""
    request = make_call(RequestCode.GET_BROKER_CONFIG)
    address = await instance.broker_address(name)
    try:
        answer = await instance.invoke(address, request)
    except RequestTimeoutError:
        answer = await instance.invoke(address, request)
    if answer.code != ResponseCode.SUCCESS:
        what = request_text(request.code)
        return Told(None, response_error(answer.code, answer.remark, address, what).describe())
    said = {name: int(text) for name, text in _SETTING.findall(bytes(answer.body))}
    size, file_size = said.get(b"maxMessageSize"), said.get(b"mappedFileSizeCommitLog")
    return Told(size, "" if size is not None else "its configuration names none", file_size)
