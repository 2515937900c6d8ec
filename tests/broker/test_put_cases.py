"""Every rule of `put_cases/`, over the handler of a store on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage import MessageStore
from storage.format.record import decode_offset_message_id
from tests.broker.put_cases import CASES
from tests.broker.put_cases.case import CONFS, PutCase
from tests.broker.put_stores import open_case_store
from tests.support.broker_handlers import Sender


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[MessageStore, Sender]]]:
    """A store and its handler for each conf."""
    stores = {conf: open_case_store(tmp_path_factory.mktemp(conf) / "store", conf) for conf in CONFS}
    yield {conf: (store, Sender(store)) for conf, store in stores.items()}
    for store in stores.values():
        store.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_answered_and_stored_by_the_rule(
    handlers: dict[str, tuple[MessageStore, Sender]], case: PutCase
) -> None:
    """Each case names its Java class and method."""
    store, handler = handlers[case.conf]
    end = store.log_end
    response = handler.send(case.request)

    remark = case.remark.replace("{client}", case.request.request.connection.address) if case.remark else None
    assert (response.code, response.remark) == (case.code, remark)
    assert {name: getattr(response, name) for name in case.answer} == case.answer
    if case.made is not None:
        assert store.writer.settings.topics.topics[case.made.topic] == case.made
    if response.msg_id is None:
        assert store.log_end == end
        return
    _, _, place = decode_offset_message_id(response.msg_id.split(",")[0])
    message = store.message_by_commitlog_offset(place)
    assert {name: getattr(message, name) for name in case.stored} == case.stored
    assert {name: message.properties.get(name) for name in case.properties} == case.properties
    assert not message.properties.keys() & set(case.absent)


def test_the_table_names_each_rule_once() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.java for case in CASES)
