"""The console in a real browser over Apache's broker: each page on a desk and on a phone, and a message found by its key.

CONSOLE_SHOTS names a directory that gets a picture of each page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.command_options import Connection
from spark_mq.console.cluster_view import ClusterViews
from spark_mq.console.pages import Console
from spark_mq.console.replays import Replays
from spark_mq.console.samples import Samples
from spark_mq.console.security import Access
from tests.console.in_browser import DESKTOP, PHONE, Served, complaints, opened_browser, shoot, show, wait
from tests.interop.test_console import Undecided, fall_behind
from tests.support.java_broker import RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

SETTINGS = {"transactionTimeOut": 3_600_000, "transactionCheckInterval": 3_600_000}
"""An open transaction stays."""
COUNT, QUEUES = 200, 4
DEAD = "%DLQ%billing"
PAGES = {
    "overview": ("/", "log ends at"),
    "topics": ("/topics", "Orders"),
    "all-topics": ("/topics?all=1", "RMQ_SYS_TRANS_HALF_TOPIC"),
    "topic": ("/topic?name=Orders", "order 199"),
    "queue": ("/topic?name=Orders&queue=0&offset=0", "offsets 0 to 49"),
    "by-key": ("/topic?name=Orders&key=k-17", "order 17"),
    "by-tag": ("/topic?name=Orders&tag=paid", "order 0"),
    "by-time": ("/topic?name=Orders&time=-1h", "order 0"),
    "message": ("/message?topic=Orders&broker=BROKER&queue=0&offset=3", "order"),
    "groups": ("/groups", "billing"),
    "group": ("/group?name=billing", "Orders"),
    "dead-letters": ("/dead-letters", "billing"),
    "dead-letters-of-group": ("/dead-letters?group=billing", "1 message in %DLQ%billing"),
    "transactions": ("/transactions", "Paid"),
    "timers": ("/timers", "18"),
    "sinks": ("/sinks", "path of a local store"),
    "about": ("/about", "their versions and licences"),
    "error": ("/topic?name=Order", "did you mean Orders?"),
}


@pytest.fixture(scope="module")
def broker_name(broker: RunningBroker) -> str:
    """Fills the broker: messages with keys and tags, a group that is behind, a dead letter, a delay and a transaction."""
    settings = ClientSettings((broker.name_server,), enable_trace=True)
    with Admin(settings) as admin:
        for topic, queues in (("Orders", QUEUES), (DEAD, 1), ("Paid", 1)):
            admin.create_topic(NewTopic(topic, queues, queues), address=broker.address)
        wait_until(lambda: "Paid" in admin.topics(), "topics")
        (name,) = admin.cluster_info().broker_address_table
    with Producer(settings, "Makers") as producer:
        for number in range(COUNT):
            tag = "open" if number % 3 else "paid"
            producer.send(Message("Orders", b'{"text": "order %d"}' % number, tags=tag, keys=[f"k-{number}"]))
        letter = Message(DEAD, b"dead", keys=["k-17"], properties={"RETRY_TOPIC": "Orders"})
        producer.hand_on(letter, MessageQueue(DEAD, name, 0))
        producer.send(Message("Orders", b"late", delay_level=18))
    fall_behind(settings)
    with TransactionProducer(settings, "Payers", Undecided()) as producer:
        producer.send_in_transaction(Message("Paid", b"half"))
    return name


@pytest.fixture(scope="module")
def served(broker: RunningBroker, broker_name: str) -> Iterator[Served]:
    connection = Connection(name_server=broker.name_server, request_timeout="10s")
    views = ClusterViews(broker.name_server, connection.settings())
    replays = Replays(None, connection)
    running = Served(Console(views, Samples(views, interval_s=1), replays, Access(None, True), allows_changes=True))
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


@pytest.mark.parametrize(("look", "size"), [("desk", DESKTOP), ("phone", PHONE)])
def test_every_page_shows_what_apaches_broker_has(
    look: str, size: tuple[int, int], served: Served, broker_name: str, browser: Any
) -> None:
    show(browser, size, "light")
    complaints(browser)
    for name, (address, said) in PAGES.items():
        deadline = time.monotonic() + 30  # a broker writes and tells some of it after seconds
        browser.get(served.address + address.replace("BROKER", broker_name))
        while said not in browser.find_element("css selector", "body").text and time.monotonic() < deadline:
            browser.refresh()
            time.sleep(0.5)
        assert said in browser.find_element("css selector", "body").text, name
        time.sleep(0.5)  # htmx and the plot
        shoot(browser, f"apache-{look}-{name}")
        assert [each for each in complaints(browser) if name != "error" or "404" not in each] == [], name
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0], name


def test_a_message_is_found_by_its_key_and_shows_its_trace_and_its_dead_copy(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + "/topic?name=Orders")
    field = browser.find_element("css selector", "input[name=key]")
    field.send_keys("k-17")
    field.submit()
    assert wait(lambda: "key=k-17" in browser.current_url)
    (row,) = browser.find_elements("css selector", "table.messages tbody tr")
    row.find_element("css selector", "a").click()
    assert wait(lambda: '"text": "order 17"' in browser.find_element("css selector", "pre.body").text)
    assert wait(lambda: "Makers" in browser.find_element("css selector", "body").text)
    shoot(browser, "apache-found-by-key")


def test_a_dead_letter_is_previewed_and_replayed(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + "/dead-letters?group=billing")
    browser.find_element("css selector", "form[action='/dead-letters/preview'] button").click()
    assert wait(lambda: "would replay 1 to Orders" in browser.page_source)
    shoot(browser, "apache-preview")
    browser.find_element("css selector", "button.change").click()
    assert wait(lambda: "1 replayed" in browser.page_source)
    shoot(browser, "apache-replayed")
    browser.get(served.address + "/topic?name=Orders")
    assert "dead" in [each.text for each in browser.find_elements("css selector", "td.body")]
