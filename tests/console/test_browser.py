"""The console in a real browser: pages opened by their links, by keyboard, on a phone, dark and light; and what runs in them.

Needs Debian's packages chromium and chromium-driver, and Python's selenium; skipped without. CONSOLE_SHOTS names a directory that gets
a picture of each page.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.console.pages import Console
from spark_mq.console.replays import Replays
from spark_mq.console.samples import Samples
from spark_mq.console.security import Access
from spark_mq.console.store_view import StoreViews
from storage import open_store
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.topics import TopicConfig
from tests.console.in_browser import DESKTOP, PHONE, Served, complaints, opened_browser, shoot, show, wait
from tests.console.small_store import make_store
from tests.console.test_store_pages import HOSTILE

pytestmark = [pytest.mark.long, pytest.mark.network]

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topic?name=Orders",
    "queue": "/topic?name=Orders&queue=0",
    "hostile-topic": "/topic?name=Hostile",
    "message": "/message?topic=Orders&broker=broker-a&queue=0&offset=3&as=json",
    "hostile-message": "/message?topic=Hostile&broker=broker-a&queue=0&offset=0",
    "groups": "/groups",
    "group": "/group?name=billing",
    "dead-letters": "/dead-letters",
    "dead-letters-of-group": "/dead-letters?group=billing",
    "transactions": "/transactions",
    "timers": "/timers",
    "sinks": "/sinks",
    "about": "/about",
    "error": "/topic?name=Order",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = make_store(tmp_path_factory.mktemp("console"))
    with open_store(root, read_only=False) as store:
        store.save_topic(TopicConfig("Hostile", 1, 1))
        store.save_topic(TopicConfig("Payments", 4, 4))
        for text in HOSTILE.values():
            plain = text.replace("\0", "").replace("\x1b", "")
            store.put("Hostile", text.encode(), queue_id=0, properties={"own": plain[:500]}, tags="t")
        for number in range(200):
            store.put("Payments", b"payment %d" % number, queue_id=number % 4)
        offsets = ConsumerOffsets.load(Path(root, "config", OFFSETS_FILE).read_text("utf-8"))
        offsets = offsets.with_offsets("billing", {("Payments", queue_id): 10 for queue_id in range(4)}, now_ms=2)
        store.save_state(OFFSETS_FILE, offsets.to_text())
    views = StoreViews(str(root))
    console = Console(views, Samples(views, interval_s=1), Replays(str(root)), Access(None, True), allows_changes=True)
    running = Served(console)
    for number in range(30):  # a lag that moves, for the plot
        with open_store(root, read_only=False) as store:
            store.put("Orders", b"later", queue_id=0)
            table = ConsumerOffsets.load(Path(root, "config", OFFSETS_FILE).read_text("utf-8"))
            moved = table.with_offsets("billing", {("Payments", 0): 10 + number}, now_ms=3 + number)
            store.save_state(OFFSETS_FILE, moved.to_text())
        running.samples.take()
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


@pytest.mark.parametrize(
    ("look", "size", "scheme"),
    [("light", DESKTOP, "light"), ("dark", DESKTOP, "dark"), ("phone", PHONE, "light"), ("phone-dark", PHONE, "dark")],
)
def test_every_page_is_drawn_without_complaint_and_no_wider_than_the_screen(
    look: str, size: tuple[int, int], scheme: str, served: Served, browser: Any
) -> None:
    show(browser, size, scheme)
    complaints(browser)
    for name, address in PAGES.items():
        browser.get(served.address + address)
        time.sleep(0.5)  # htmx and the plot
        shoot(browser, f"{look}-{name}")
        said = [each for each in complaints(browser) if name != "error" or "404" not in each]
        assert said == [], name
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], name
        assert browser.execute_script("return document.title") != "", name


def test_copies_and_traces_come_by_htmx(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + PAGES["message"])
    assert wait(lambda: "There is no trace topic" in browser.page_source)


def test_the_plot_is_drawn_with_a_line_for_each_topic(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + PAGES["group"])
    assert wait(lambda: browser.execute_script("return document.querySelectorAll('.plot canvas').length") == 1)
    labels = browser.find_elements("css selector", ".plot .u-legend .u-label")
    assert [each.text for each in labels] == ["time", "Orders", "Payments"]


def test_a_page_is_reached_and_paged_by_the_keyboard_alone(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, DESKTOP, "light")
    browser.get(served.address + "/topics")
    press_until(browser, Keys.TAB, lambda: focused(browser) == "Orders")
    press(browser, Keys.ENTER)
    assert wait(lambda: "name=Orders" in browser.current_url)
    press_until(browser, Keys.TAB, lambda: focused(browser) == "To its queues")
    press(browser, Keys.ENTER)
    press_until(browser, Keys.TAB, lambda: focused(browser) == "broker-a 0")
    press(browser, Keys.ENTER)
    assert wait(lambda: "queue=0" in browser.current_url)
    press_until(browser, Keys.TAB, lambda: focused(browser) == "older")
    shoot(browser, "keyboard")
    press(browser, Keys.ENTER)
    assert wait(lambda: "offset=" in browser.current_url)
    assert wait(lambda: "offsets" in browser.page_source)
    browser.back()
    assert wait(lambda: "offset=" not in browser.current_url)
    assert browser.execute_script("return document.querySelectorAll('nav').length") == 2


def test_a_message_is_found_by_its_key(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + "/topic?name=Orders")
    field = browser.find_element("css selector", "input[name=key]")
    field.send_keys("order-17")
    field.submit()
    assert wait(lambda: "key=order-17" in browser.current_url)
    rows = browser.find_elements("css selector", "table.messages tbody tr")
    assert len(rows) == 1
    rows[0].find_element("css selector", "a").click()
    assert wait(lambda: '"order": 17' in browser.find_element("css selector", "pre.body").text)


def test_dead_letters_are_replayed_while_the_page_follows(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    browser.get(served.address + "/dead-letters?group=billing")
    browser.find_element("css selector", "button.change").click()
    assert wait(lambda: re.search(r"3 replayed|nothing to replay", browser.page_source) is not None)
    shoot(browser, "replayed")


def test_nothing_of_a_hostile_message_runs(served: Served, browser: Any) -> None:
    show(browser, DESKTOP, "light")
    for offset in range(len(HOSTILE)):
        browser.get(f"{served.address}/message?topic=Hostile&broker=broker-a&queue=0&offset={offset}")
        assert browser.title.startswith("Message 0:")
        assert browser.execute_script("return document.querySelectorAll('main script, main img, main svg').length") == 0
    assert complaints(browser) == []


def test_a_login_lets_the_browser_in(tmp_path: Path, browser: Any) -> None:
    views = StoreViews(str(make_store(tmp_path)))
    console = Console(views, Samples(views), Replays(None), Access("a-token-of-some-length", True))
    running = Served(console)
    try:
        show(browser, PHONE, "light")
        browser.get(running.address + "/topics")
        assert browser.title.startswith("Login")
        shoot(browser, "login")
        field = browser.find_element("css selector", "input[name=token]")
        field.send_keys("a-token-of-some-length")
        field.submit()
        assert wait(lambda: browser.title.startswith("Overview"))
        browser.get(running.address + "/topics")
        assert "Orders" in browser.page_source
    finally:
        browser.get("about:blank")
        running.close()


def press(browser: Any, key: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(key).perform()


def press_until(browser: Any, key: str, is_there: Any) -> None:
    for _ in range(60):
        if is_there():
            return
        press(browser, key)
    raise AssertionError("never reached by the keyboard")


def focused(browser: Any) -> str:
    return str(browser.switch_to.active_element.text).strip()
