"""A follower's requests to its master besides the log: its HA address, the bounds of its log, a record, its state files.

    KnownMaster    its address comes from the broker's registration, or from haMasterAddress
    ElectedMaster  a controller has named it
    MasterByName   name servers know it

Java: BrokerOuterAPI, SlaveSynchronize.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from spark_mq.broker_server.settings import VIP_PORTS_BELOW, Configuration
from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call
from spark_mq.client.errors import ClientError, ResponseError, request_text
from spark_mq.client.settings import ClientSettings, split_address
from spark_mq.remoting import Header, RemotingCommand, RequestCode, make_request, write_body
from spark_mq.remoting.administration import GroupPageRequest, TopicPageRequest
from spark_mq.remoting.messages import ViewMessageRequest
from storage.errors import StateFileError
from storage.format import fastjson
from storage.format.typed_json import DataVersion
from storage.names import MASTER_ID, address_text
from storage.rules.response_codes import ResponseCode
from storage.tables.document import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, integer, parse_document, section
from storage.tables.masters import (
    DELAYS_FILE,
    REQUEST_MODES_FILE,
    TIMER_CHECKPOINT_FILE,
    TIMER_METRICS_FILE,
    FollowedTimer,
)
from storage.tables.topics import TopicTable

_CODES: Mapping[str, int] = {
    TOPICS_FILE: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS_FILE: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS_FILE: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAYS_FILE: RequestCode.GET_ALL_DELAY_OFFSET,
    TIMER_METRICS_FILE: RequestCode.GET_TIMER_METRICS,
    TIMER_CHECKPOINT_FILE: RequestCode.GET_TIMER_CHECK_POINT,
    REQUEST_MODES_FILE: RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
}


class _Paged(NamedTuple):
    """How a table is requested in pages, and its parts in the answer."""

    request: Callable[[int, str], Header]
    """From the number of the page's first entry, and the version of the pages before."""
    total: str
    tables: tuple[str, ...]
    """The one that is counted, and those that have entries of the same names."""


_PAGE = 2_000
_TOPIC_PAGES = _Paged(
    lambda first, version: TopicPageRequest(topic_seq=first, data_version=version, max_topic_num=_PAGE),
    "totalTopicNum",
    ("topicConfigTable", "topicQueueMappingDetailMap"),
)
_PAGED: Mapping[str, _Paged] = {
    TOPICS_FILE: _TOPIC_PAGES,
    GROUPS_FILE: _Paged(
        lambda first, version: GroupPageRequest(group_seq=first, data_version=version, max_group_num=_PAGE),
        "totalGroupNum",
        ("subscriptionGroupTable", "forbiddenTable"),
    ),
}
_CHANGES_MOST = 10
_ON_FAST_PORT = {TOPICS_FILE, TIMER_METRICS_FILE, TIMER_CHECKPOINT_FILE}
_NO_RECORD = "can not find message by the offset"
_LOG = logging.getLogger(__name__)


class MasterPlace(NamedTuple):
    """A master's address for requests, and its address for slaves; host:port."""

    address: str
    ha_address: str


class Master(ABC):
    """A master as its follower knows it. Thread-safe; each call sends a request."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    @abstractmethod
    def place(self) -> MasterPlace | None:
        """Its addresses; None: unknown now."""

    def ha_address(self) -> str | None:
        """The address for slaves."""
        found = self.place()
        return None if found is None else found.ha_address

    def bounds(self) -> tuple[int, int] | None:
        """Begin and end of the master's log."""
        found = self.place()
        if found is None:
            return None
        try:
            with Admin(self._settings) as admin:
                figures = admin.runtime_info(found.address)
            return int(figures["commitLogMinOffset"]), int(figures["commitLogMaxOffset"])
        except (ClientError, KeyError, ValueError) as error:
            _LOG.warning("how far the log of %s goes is not known: %s", found.address, error)
            return None

    def record(self, commitlog_offset: int, topic: str) -> bytes | None:
        """The record that begins there, b"" if none does; None if the master is not reachable."""
        found = self.place()
        if found is None:
            return None
        header = ViewMessageRequest(topic=topic, commitlog_offset=commitlog_offset)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        try:
            return bytes(answered(found.address, make_call(code, header), self._settings).body)
        except ResponseError as error:
            return b"" if (error.remark or "").startswith(_NO_RECORD) else None
        except ClientError as error:
            _LOG.info("%s does not show the record at %d: %s", found.address, commitlog_offset, error)
            return None

    def topics(self) -> TopicTable | None:
        """Its topics; None if they are not known now."""
        try:
            text = self.state(TOPICS_FILE)
            return None if text is None else TopicTable.load(text, "the master's answer")
        except (ClientError, StateFileError, UnicodeDecodeError) as error:
            _LOG.warning("the topics of the master are not known: %s", error)
            return None

    def _ha_address(self, address: str) -> str | None:
        """None = the broker there is no master, or not yet. Raises ClientError."""
        try:
            fields = answer_of(address, RequestCode.EXCHANGE_BROKER_HA_INFO, self._settings).ext_fields or {}
        except ResponseError:  # it has no such request
            host, port = split_address(address)
            return address_text(host, port + 1)
        return fields.get("masterHaAddress")

    def state(self, name: str) -> str | None:
        """The text of the master's file of that name; None if it has none. Raises ClientError."""
        found = self.place()
        if found is None:
            return None
        host, port = split_address(found.address)
        address = address_text(host, port - VIP_PORTS_BELOW) if name in _ON_FAST_PORT else found.address
        if name in _PAGED:
            return all_pages(name, lambda header: answered(address, make_call(_CODES[name], header), self._settings))
        body = bytes(answer_of(address, _CODES[name], self._settings).body)
        return FollowedTimer.of_answer(body).to_text() if name == TIMER_CHECKPOINT_FILE else body.decode() or None


class KnownMaster(Master):
    """A master whose address comes from another component."""

    def __init__(self, settings: ClientSettings, ha_address: str | None = None) -> None:
        """`ha_address` is haMasterAddress; it wins over any address that is set later."""
        super().__init__(settings)
        self._fixed = ha_address
        self._place: MasterPlace | None = None

    @classmethod
    def of(cls, configuration: Configuration) -> KnownMaster:
        """The master that name servers name when the broker registers, or that serves at haMasterAddress."""
        ha_address = configuration.process.ha_master_address
        settings = configuration.client or ClientSettings((ha_address or "",))  # then no name server is used
        return cls(settings, ha_address)

    def tell(self, address: str, ha_address: str) -> None:
        """It is there from now on."""
        if (found := MasterPlace(address, ha_address)) != self._place:
            _LOG.info("the master is %s, and serves its log at %s", address, ha_address)
            self._place = found

    def place(self) -> MasterPlace | None:
        return self._place

    def ha_address(self) -> str | None:
        return self._fixed or super().ha_address()

    def record(self, commitlog_offset: int, topic: str) -> bytes | None:
        is_other = self._fixed is not None and self._place is not None and self._place.ha_address != self._fixed
        return None if is_other else super().record(commitlog_offset, topic)


class ElectedMaster(Master):
    """A master that a controller has named. The master itself says where it serves its log."""

    def __init__(self, settings: ClientSettings, address: str) -> None:
        super().__init__(settings)
        self._address = address
        self._ha: str | None = None

    @classmethod
    def of(cls, configuration: Configuration, address: str) -> ElectedMaster:
        """The master at an address, for a broker of that configuration."""
        settings = configuration.client or ClientSettings((address,), credentials=configuration.access.credentials)
        return cls(settings, address)

    def place(self) -> MasterPlace | None:
        try:
            self._ha = self._ha or self._ha_address(self._address)
        except ClientError as error:
            _LOG.info("%s does not say where it serves its log: %s", self._address, error)
        return None if self._ha is None else MasterPlace(self._address, self._ha)


class MasterByName(Master):
    """The master of a broker name: name servers know its address, and the master itself says where it serves its log."""

    def __init__(self, settings: ClientSettings, broker_name: str) -> None:
        super().__init__(settings)
        self._broker_name = broker_name

    @classmethod
    def of(cls, configuration: Configuration) -> MasterByName:
        """The leader of the DLedger group that the broker belongs to."""
        return cls(configuration.client or ClientSettings(), configuration.broker_name)

    def place(self) -> MasterPlace | None:
        try:
            with Admin(self._settings) as admin:
                known = admin.cluster_info().broker_address_table.get(self._broker_name)
            address = None if known is None else known.broker_addresses.get(MASTER_ID)
            ha_address = None if address is None else self._ha_address(address)
            return None if address is None or ha_address is None else MasterPlace(address, ha_address)
        except ClientError as error:
            _LOG.warning("where %s is, is not known: %s", self._broker_name, error)
            return None


def answer_of(address: str, code: int, settings: ClientSettings) -> RemotingCommand:
    """A broker's answer to a request without fields. Raises ClientError; ResponseError for another code than SUCCESS."""
    return answered(address, make_request(code), settings)


def answered(address: str, request: RemotingCommand, settings: ClientSettings) -> RemotingCommand:
    """What a broker answers. Raises ClientError, ResponseError for another code than SUCCESS."""
    with closing(BlockingConnection[None](address, settings)) as connection:
        connection.send([(request, None)])
        ((_, answer),) = connection.receive()
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(answer.code, answer.remark, address, request_text(request.code))
    return answer


def all_pages(name: str, ask: Callable[[Header], RemotingCommand]) -> str:
    """The text of topics or groups, which a master from 5.4.0 on answers in pages; an older one answers with all.

    Departure: it ends when all are there. Java ends one entry earlier, and does not copy the last of 2,001. Raises what `ask` raises,
    UnicodeDecodeError or StateFileError for an answer that is no table, StateFileError for an empty page, or a table that changes
    between all pages.
    """
    paged, source = _PAGED[name], "the master's answer"
    tables: list[dict[str, Any]] = [{} for _ in paged.tables]
    version, changes = DataVersion(), 0
    while changes < _CHANGES_MOST:
        first = len(tables[0])
        answer = ask(paged.request(first, write_body(version).decode() if first else ""))
        text = bytes(answer.body).decode()
        document, fields = parse_document(text, source), answer.ext_fields or {}
        if paged.total not in fields:
            return text
        said = DataVersion.from_document(document, source)
        if first and said != version:
            tables = [{} for _ in tables]
            changes += 1
            continue
        version = said
        for table, part in zip(tables, paged.tables, strict=True):
            table.update(section(document, part, source))
        if len(tables[0]) >= integer(fields, paged.total, 0, source):
            return fastjson.to_text({**document, **dict(zip(paged.tables, tables, strict=True))})
        if len(tables[0]) == first:
            raise StateFileError(source, 0, 0, f"the page from entry {first} of {fields[paged.total]} has nothing new")
    raise StateFileError(source, 0, 0, f"{name} changed {changes} times while it was copied")
