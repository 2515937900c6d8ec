"""Every page over a store: what it shows, how far one can page, and that it is harmless whatever messages contain."""

from __future__ import annotations

import html
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from spark_mq.console.pages import link
from spark_mq.console.views import VIEWS_AT_A_TIME
from storage import open_store
from storage.files import file_system
from storage.format.consume_queue import ENTRY_SIZE
from storage.format.record import COMPRESSED, COMPRESSION_ZLIB, COMPRESSION_ZSTD, compress
from storage.rules.inner_messages import InnerMessage
from storage.tables.topics import TopicConfig
from tests.console.small_store import DEAD, ORDERS, OpenConsole
from tests.console.structure import Structure
from tests.support.clock import Clock
from tests.support.fixture_stores import Fixture
from tests.support.shares import one_in
from tests.support.store_builder import StoreBuilder
from tests.support.store_copies import picture

ADDRESSES = [
    "/",
    "/topics",
    "/topics?all=1",
    "/topic?name=Orders",
    "/topic?name=Orders&queue=0",
    "/topic?name=Orders&queue=0&offset=5",
    "/topic?name=Orders&queue=1&tag=open",
    "/topic?name=Orders&time=-1h",
    "/topic?name=Orders&key=order-17",
    "/message?topic=Orders&broker=broker-a&queue=0&offset=3",
    "/message?topic=Orders&broker=broker-a&queue=0&offset=3&as=json",
    "/message?topic=Orders&broker=broker-a&queue=0&offset=3&as=hex&all=1",
    "/message/related?topic=Orders&broker=broker-a&queue=0&offset=3",
    "/groups",
    "/groups?all=1",
    "/group?name=billing",
    "/dead-letters",
    "/dead-letters?group=billing",
    "/dead-letters/run",
    "/transactions",
    "/timers",
    "/sinks",
    "/archive",
    "/about",
    "/login",
]


def page(client: TestClient, address: str, status: int = 200) -> Structure:
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return Structure(answer.text)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_there_and_nothing_in_the_store_changes(
    address: str, root: Path, open_console: OpenConsole
) -> None:
    before = picture(root)
    client = open_console(root)
    assert page(client, address).tags or address == "/dead-letters/run"
    assert client.post(address).status_code in (400, 403, 405) or address == "/login"
    assert picture(root) == before


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_link_of_a_page_leads_somewhere(address: str, root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    for found in dict.fromkeys(page(client, address).links):
        if not found.startswith("#") and found not in ("/dead-letters/replay", "/dead-letters/preview"):
            assert client.get(found).status_code in (200, 303), found


@pytest.mark.parametrize("name", one_in(3, ["clean", "timer", "crashed", "expired", "ext", "v4.9.7"]))
def test_stores_of_apaches_broker_are_shown(
    name: str, pristine_store: Callable[[str], Fixture], open_console: OpenConsole
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = open_console(pristine_store(name).root)
        seen: set[str] = set()
        left = ["/", "/topics?all=1", "/groups?all=1", "/dead-letters", "/transactions", "/timers", "/sinks"]
        while left and len(seen) < 80:
            address = left.pop(0)
            seen.add(address)
            answer = client.get(address)
            assert answer.status_code in (200, 303), (address, answer.text)
            if "text/html" in answer.headers["content-type"]:
                left += [each for each in Structure(answer.text).links if each not in seen and each not in left]


def test_the_timers_page_has_what_waits(pristine_store: Callable[[str], Fixture], open_console: OpenConsole) -> None:
    text = page(open_console(pristine_store("timer").root), "/timers").text
    assert "Timer" in text
    assert "waiting in the wheel" in text


def test_the_overview_has_the_watermarks(root: Path, open_console: OpenConsole) -> None:
    with open_store(root) as store:
        end = store.log_end
    text = page(open_console(root), "/").text
    for shown in ("broker-a", "log ends at", f"{end:,}", str(root)):
        assert shown in text


def test_topics_have_queues_and_messages(root: Path, open_console: OpenConsole) -> None:
    text = page(open_console(root), "/topics").text
    assert re.search(rf"Orders\s*2\s*{ORDERS}", text)
    assert DEAD in text


# Paging


def shown_offsets(client: TestClient, address: str) -> list[int]:
    """The offsets of the messages of one queue that a page shows."""
    links = [urlsplit(each) for each in page(client, address).links]
    return [int(parse_qs(each.query)["offset"][0]) for each in links if each.path == "/message"]


def test_a_queue_is_paged_from_its_end_to_its_beginning_without_a_gap(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    address: str | None = "/topic?name=Orders&queue=0"
    offsets: list[int] = []
    while address is not None:
        offsets = shown_offsets(client, address) + offsets
        older = re.search(r'<a href="([^"]*)"[^>]* id="older"', client.get(address).text)
        address = None if older is None else html.unescape(older[1])
    assert sorted(set(offsets)) == list(range(ORDERS // 2))


def test_a_page_reads_its_messages_alone(
    root: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the queue is: the messages of the page, and a look or two for the times of the queues."""
    from storage.queues.consume_queue import ConsumeQueue

    client = open_console(root)
    looked_at: list[int] = []
    message_at = ConsumeQueue.message_at

    def counted(queue: ConsumeQueue, offset: int, *rest: object) -> object:
        looked_at.append(offset)
        return message_at(queue, offset, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ConsumeQueue, "message_at", counted)
    client.get("/topic?name=Orders&queue=0&offset=30")
    assert sorted(looked_at) == list(range(30, 60))


MANY, MANY_AT_MS = 20_000, 1_700_000_000_000
"""Messages of one queue, each with a key, stored at a millisecond of its own."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, clock = tmp_path_factory.mktemp("many") / "store", Clock(0)
    with open_store(root, read_only=False, create=True, clock=clock) as store:
        store.save_topic(TopicConfig("Many", 1, 1))
        for start in range(0, MANY, 100):
            clock.now_ms = MANY_AT_MS + start
            numbers = range(start, start + 100)
            rows = {"topic": ["Many"] * 100, "body": [b"%d" % number for number in numbers]}
            store.put_batch(pa.table({**rows, "keys": [[f"key-{number}"] for number in numbers]}))
    return root


def test_the_last_page_of_a_long_queue_costs_what_the_first_costs(
    many: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By offset, by time and by key: reads of files, and the bytes of the queue among them, not by the messages before the page."""
    client, spent = open_console(many), Counter[str]()
    for kind in (file_system.LocalFile, file_system.LocalFileInMemory, file_system.LocalSmallReads):
        monkeypatch.setattr(kind, "view", counted(kind.view, spent))

    def cost(query: str, first: int) -> tuple[int, int]:
        client.get(f"/topic?name=Many&{query}")  # files are open, the index is loaded
        spent.clear()
        assert f">{first}<" in client.get(f"/topic?name=Many&{query}").text
        return spent["reads"], spent["bytes of the queue"]

    last = MANY - 50
    for reads, queue_bytes in (cost(f"offset={offset}", offset) for offset in (0, MANY // 2, last)):
        assert reads <= 4 * 50
        assert queue_bytes <= 2 * 50 * ENTRY_SIZE
    for start in (0, MANY // 2, last // 100 * 100):
        reads, queue_bytes = cost(f"time={MANY_AT_MS + start}", start)
        assert reads <= 4 * (50 + MANY.bit_length())
        assert queue_bytes <= 2 * (50 + MANY.bit_length()) * ENTRY_SIZE
    for number in (0, MANY // 2, MANY - 1):
        reads, queue_bytes = cost(f"key=key-{number}", number)
        assert (reads <= 40, queue_bytes <= 10 * ENTRY_SIZE) == (True, True)


def counted(view: Callable[..., Any], spent: Counter[str]) -> Callable[..., Any]:
    def looked(file: Any, position: int, length: int) -> Any:
        spent["reads"] += 1
        if "/consumequeue/" in file.path:
            spent["bytes of the queue"] += length
        return view(file, position, length)

    return looked


def test_large_messages_make_shorter_pages(tmp_path: Path, open_console: OpenConsole) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        for _ in range(8):
            store.put("Large", b"x" * (4 << 20), queue_id=0, queue_count=1)
    client = open_console(tmp_path / "store")
    assert shown_offsets(client, "/topic?name=Large&queue=0&offset=0") == [0, 1, 2, 3]
    assert shown_offsets(client, "/topic?name=Large&queue=0&offset=4") == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ("key=order-17", [17]),
        ("key=no-key", []),
        ("tag=open", range(0, ORDERS, 10)),
        ("queue=0&tag=open", range(0, ORDERS, 10)),
        ("queue=1&offset=59", [119]),
        ("queue=1&offset=10000", []),
        ("queue=0&tag=open&offset=50", [100, 110]),
        ("queue=0&tag=open || nothing&offset=50", [100, 110]),
    ],
)
def test_messages_are_found(query: str, bodies: list[int], root: Path, open_console: OpenConsole) -> None:
    text = page(open_console(root), f"/topic?name=Orders&{query}").text
    assert [int(each) for each in re.findall(r'{"order": (\d+), ', text)] == list(bodies)


def test_messages_are_found_by_unique_key_and_by_message_id(root: Path, open_console: OpenConsole) -> None:
    with open_store(root) as store:
        wanted = store.get("Orders", 1, 7, 1).messages[0]
    client = open_console(root)
    assert '{"order": 15, ' in page(client, f"/topic?name=Orders&unique={wanted.unique_key}").text
    moved = client.get(f"/topic?name=Orders&id={wanted.msg_id}")
    assert moved.headers["location"] == f"/message?id={wanted.msg_id}"
    assert '{"order": 15, "price": 1.10}' in page(client, moved.headers["location"]).text


def test_a_message_shows_its_record(root: Path, open_console: OpenConsole) -> None:
    with open_store(root) as store:
        message = store.get("Orders", 0, 3, 1).messages[0]
    text = page(open_console(root), "/message?topic=Orders&broker=broker-a&queue=0&offset=3").text
    for shown in (message.msg_id, message.unique_key, "order-6", "paid", f"{message.commitlog_offset:,}", "commitlog/"):
        assert shown in text
    shown = page(open_console(root), "/message?topic=Orders&broker=broker-a&queue=0&offset=3&as=json").text
    assert '"price": 1.10' in shown


def test_copies_of_a_message_are_found(root: Path, open_console: OpenConsole) -> None:
    with open_store(root, read_only=False) as store:
        store.put_inner([InnerMessage(topic="%RETRY%billing", queue_id=0, body=b"r", properties={"UNIQ_KEY": "DEAD1"})])
    client = open_console(root)
    text = page(client, link("/message/related", topic=DEAD, broker="broker-a", queue=0, offset=1)).text
    assert "%RETRY%billing" in text
    assert "There is no trace topic" in text


def test_traces_of_a_message_are_shown(root: Path, open_console: OpenConsole) -> None:
    trace = "Pub\x011700000000000\x01region\x01makers\x01Orders\x01DEAD1\x01tag\x01key\x01h:1\x013\x015\x010\x01ID\x01true\x02"
    with open_store(root, read_only=False) as store:
        properties = {"KEYS": "DEAD1 other"}
        topic = "RMQ_SYS_TRACE_TOPIC"
        store.put_inner([InnerMessage(topic=topic, queue_id=0, body=trace.encode(), properties=properties)])
    text = page(open_console(root), link("/message/related", topic=DEAD, broker="broker-a", queue=0, offset=1)).text
    assert re.search(r"2023-11-14 22:13:20.000\s*Pub", text)
    assert "makers" in text


# Groups, transactions


def test_groups_show_who_is_behind(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    assert re.search(r"billing\s+Orders\s+2\s+20", page(client, "/groups").text)
    text = page(client, "/group?name=billing").text
    assert re.search(r"Orders\s+broker-a\s+0\s+40\s+60\s+20", text)
    series = client.get("/samples?name=billing").json()
    assert series["series"] == [{"label": "Orders", "values": [20] * len(series["times"])}]


def test_a_query_stands_beside_the_groups_only_if_it_is_named(root: Path, open_console: OpenConsole) -> None:
    assert page(open_console(root), "/group?name=nothing", 404).text
    assert page(open_console(root), "/group?name=billing&kind=query").text


def test_open_transactions_are_shown_and_ended_ones_are_not(
    pristine_store: Callable[[str], Fixture], open_console: OpenConsole
) -> None:
    from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC
    from storage.transaction.half_queue import read_halves
    from storage.transaction.outcomes import read_ended
    from storage.transaction.progress import read_progress

    root = pristine_store("clean").root
    with open_store(root) as store:
        progress = read_progress(store)
        halves = read_halves(store, progress.half_offset, store.max_offset(HALF_TOPIC, 0))
        ended = set(read_ended(store, progress.op_offset, store.max_offset(OP_TOPIC, 0)).half_offsets.tolist())
    waiting = [offset for offset in halves.queue_offsets.tolist() if offset not in ended]
    links = page(open_console(root), "/transactions").links
    shown = [parse_qs(urlsplit(each).query)["offset"][0] for each in links if each.startswith("/message")]
    assert shown == [str(offset) for offset in waiting]


# What messages contain

HOSTILE = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>",
    "template": "{{ 7*7 }}{% raw %}${7*7}<%= 7*7 %>",
    "bidi": "abc\u202etxt.exe\u2066\u200b\u0000\u001b[31m",
    "formula": "=cmd|' /C calc'!A0",
    "address": "javascript:alert(1)//https://evil.example/",
    "htmx": '<a hx-get="/x" hx-trigger="load" data-hx-on:click="x">',
    "long": "x" * 5_000,
}


def send_all(builder: StoreBuilder, text: str) -> None:
    """Text in every place that a sender fills."""
    stripped = text.replace("\0", "").replace("/", "∕")
    clean = stripped.replace("\x01", "").replace("\x02", "")
    builder.send(clean[:60], text, tags=clean, keys=clean, unique_key=clean, properties={clean: clean})


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_makes_a_page_of_the_same_tags_as_a_plain_one(
    kind: str, tmp_path: Path, open_console: OpenConsole
) -> None:
    text = HOSTILE[kind]
    builder = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=1 << 20)
    send_all(builder, "plain")
    send_all(builder, text)
    client = open_console(tmp_path / "broker-a")
    topics = [
        parse_qs(urlsplit(each).query)["name"][0] for each in page(client, "/topics?all=1").links if "?name=" in each
    ]
    plain, hostile = sorted(topics, key=lambda name: name != "plain")
    for address in ("/topic", "/message", "/message/related"):
        place = {"broker": "broker-a", "queue": 0, "offset": 0}
        name = "name" if address == "/topic" else "topic"
        pages = [page(client, link(address, **{name: topic}, **place)) for topic in (plain, hostile)]
        tags = [[each for each in one.tags if each[0] != "a"] for one in pages]
        assert tags[0] == tags[1], address
        for character in "\u202e\u2066\u200b\x00\x1b":
            assert character not in pages[1].text
        if kind == "bidi" and address != "/message/related":
            assert "⟨U+202E⟩" in pages[1].text
    body = client.get(link("/message/body", topic=hostile, broker="broker-a", queue=0, offset=0))
    assert body.content == text.encode()
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"] == 'attachment; filename="message-0-0.bin"'


@pytest.mark.parametrize("address", ["/topic?name=", "/group?name=", "/dead-letters?group=", "/message?id=", "/x/"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_address_is_a_page_of_text(kind: str, address: str, root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    answer = client.get(address + link("", v=HOSTILE[kind][:300]).removeprefix("?v="))
    assert answer.status_code in (400, 404)
    Structure(answer.text)


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/topic?name=Order", 404, "did you mean Orders?"),
        ("/topic", 400, "the address names no name"),
        ("/topic?name=Orders&queue=7", 404, "there is no queue 7 of topic Orders"),
        ("/topic?name=Orders&queue=x", 400, "queue must be a whole number"),
        ("/topic?name=Orders&queue=-1", 400, "queue must be a whole number"),
        ("/topic?name=Orders&queue=0&offset=99999999999999999999", 400, "offset must be a whole number"),
        ("/topic?name=Orders&offset=3", 400, "name the queue"),
        ("/topic?name=Orders&queue=0&offset=3&time=-1h", 400, "an offset and a time both say where to begin"),
        ("/topic?name=Orders&time=soon", 400, "expected ms since the epoch"),
        ("/topic?name=Orders&broker=b&queue=0", 404, "there is no queue 0"),
        ("/message?topic=Orders&broker=broker-a&queue=0&offset=60", 404, "there is no message at offset 60"),
        ("/message?topic=Orders&broker=other&queue=0&offset=0", 404, "at broker other"),
        ("/message?topic=Orders&broker=broker-a&queue=0&offset=0&as=html", 404, "form of a body"),
        ("/message?id=xyz", 400, "is no offset message id"),
        (f"/message?id={'0' * 32}", 404, "no message has the id"),
        ("/dead-letters?group=Orders", 404, "has no dead letters"),
        ("/no-such-page", 404, "Not Found"),
        ("/topic?name=" + "x" * 5_000, 400, "the limit is 4,096"),
    ],
)
def test_what_is_not_there_is_said(address: str, status: int, said: str, root: Path, open_console: OpenConsole) -> None:
    assert said in page(open_console(root), address, status).text


def test_a_body_of_four_mebibytes_is_cut_shown_on_request_and_downloaded(
    tmp_path: Path, open_console: OpenConsole
) -> None:
    body = b"<b>" * (1 << 20) + b"the end"
    with open_store(tmp_path / "broker-a", read_only=False, create=True) as store:
        store.put("Large", body, queue_id=0, queue_count=1)
    client = open_console(tmp_path / "broker-a")
    address = "/message?topic=Large&broker=broker-a&queue=0&offset=0"
    first = client.get(address).text
    assert len(first) < 600_000
    assert "Show all" in first
    assert "the end" in client.get(address + "&all=1").text
    assert client.get(address.replace("/message", "/message/body")).content == body


@pytest.mark.parametrize(
    ("name", "flag"), [("ZLIB", COMPRESSION_ZLIB), ("ZSTD", COMPRESSION_ZSTD)], ids=["zlib", "zstd"]
)
def test_compressed_bodies_are_opened_broken_ones_and_bombs_are_said(
    name: str, flag: int, tmp_path: Path, open_console: OpenConsole
) -> None:
    sys_flag = COMPRESSED | flag
    bodies = [compress(b"the body " * 100, flag), b"no compression", compress(b"\0" * (80 << 20), flag)]
    with open_store(tmp_path / "broker-a", read_only=False, create=True) as store:
        store.save_topic(TopicConfig("T", 1, 1))
        store.put_inner(
            [InnerMessage(topic="T", queue_id=0, body=body, properties={}, sys_flag=sys_flag) for body in bodies]
        )
    client = open_console(tmp_path / "broker-a")
    texts = [page(client, f"/message?topic=T&broker=broker-a&queue=0&offset={offset}").text for offset in range(3)]
    assert "the body the body" in texts[0]
    assert name in texts[0]
    for text in texts[1:]:
        assert "The body does not decompress" in text
    assert f"({len(bodies[0]):,} bytes, {name})" in page(client, "/topic?name=T").text
    assert client.get("/message/body?topic=T&broker=broker-a&queue=0&offset=1").status_code == 404
    assert client.get("/message/body?topic=T&broker=broker-a&queue=0&offset=1&stored=1").content == bodies[1]


def test_an_entry_that_leads_nowhere_is_a_row_that_says_so(tmp_path: Path, open_console: OpenConsole) -> None:
    builder = StoreBuilder(tmp_path / "broker-a")
    builder.send_many("T", 2)
    builder.append_entry("T", 0, 3, 100)
    builder.send_many("T", 1)
    client = open_console(tmp_path / "broker-a")
    assert "no message:" in page(client, "/topic?name=T&queue=0").text
    assert "no message:" in page(client, "/message?topic=T&broker=broker-a&queue=0&offset=2", 404).text


# Dead letters


def form_of(client: TestClient) -> dict[str, str]:
    """The hidden fields of the form that replays."""
    text = client.get("/dead-letters?group=billing").text
    return dict(re.findall(r'<input type="hidden" name="(form|group|number)" value="([^"]*)">', text))


def after_run(client: TestClient) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = Structure(client.get("/dead-letters/run").text).text
        if "Ended" in text:
            return text
        time.sleep(0.05)
    raise AssertionError("the replay goes on")


def test_a_preview_lists_what_a_replay_would_do(root: Path, open_console: OpenConsole) -> None:
    before = picture(root)
    text = preview_of(open_console(root), limit="2")
    assert "would replay 2 to Orders" in text
    assert "more than 2 (--limit)" in text
    assert picture(root) == before


def preview_of(client: TestClient, **fields: str) -> str:
    answer = client.post("/dead-letters/preview", data={**form_of(client), **fields})
    assert answer.status_code == 200, answer.text
    return Structure(answer.text).text


def test_a_preview_needs_a_form_of_this_console(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    assert "would replay" not in client.get("/dead-letters?group=billing&preview=1").text
    for wrong in ({}, {"form": "x"}):
        refused = client.post("/dead-letters/preview", data={"group": "billing", **wrong})
        assert (refused.status_code, "not of this console" in refused.text) == (403, True)
    assert client.get("/dead-letters/preview").status_code == 405


def test_two_previews_are_not_made_at_once(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    with client.app._app.state.console.replays._previewing:  # type: ignore[attr-defined]
        refused = client.post("/dead-letters/preview", data=form_of(client))
    assert (refused.status_code, "another preview" in refused.text) == (400, True)
    assert "would replay 3" in preview_of(client)


def test_a_slow_page_holds_up_neither_another_nor_the_samples(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    console = client.app._app.state.console  # type: ignore[attr-defined]
    with console.views.opened():
        answers: list[int] = []
        others = threading.Thread(target=lambda: answers.append(client.get("/topics").status_code), daemon=True)
        looks = threading.Thread(target=lambda: answers.append(len(console.samples.take().groups)), daemon=True)
        for each in (others, looks):
            each.start()
        for each in (others, looks):
            each.join(20)
        assert sorted(answers) == [1, 200]


def test_a_page_without_a_free_view_is_refused(
    root: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_console(root)
    views = client.app._app.state.console.views  # type: ignore[attr-defined]
    monkeypatch.setattr("spark_mq.console.store_view.LONGEST_WAIT_S", 0.01)
    with ExitStack() as opened:
        for _ in range(VIEWS_AT_A_TIME):
            opened.enter_context(views.opened())
        refused = client.get("/topics")
        assert (refused.status_code, "other pages are being made" in refused.text) == (503, True)
        assert client.get("/login").status_code == 200
    assert client.get("/topics").status_code == 200


def test_searches_end_at_the_bytes_of_a_page(
    root: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_console(root)
    address = "/topic?name=Orders&queue=1&tag=paid"
    assert page(client, address).text.count("price") == 50
    monkeypatch.setattr("spark_mq.console.store_view.PAGE_BYTES", 1_000)
    assert 0 < page(client, address).text.count("price") < 20


def test_the_copies_of_a_message_end_at_their_bounds(
    root: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(root, read_only=False) as store:
        for group in ("a", "b", "c"):
            letter = {"UNIQ_KEY": "DEAD0", "RETRY_TOPIC": "Orders"}
            store.put_inner(
                [InnerMessage(topic=f"%DLQ%{group}", queue_id=0, body=b"x", properties=letter, born_time_ms=1)] * 3
            )
    client = open_console(root)
    address = f"/message/related?{urlencode({'topic': DEAD, 'broker': 'broker-a', 'queue': 0, 'offset': 0})}"
    assert page(client, address).text.count("%DLQ%") == 9
    monkeypatch.setattr("spark_mq.console.message_pages._COPIES", 1)
    text = page(client, address).text
    assert text.count("%DLQ%") == 3
    assert "more topics were not looked at" in text
    monkeypatch.undo()
    monkeypatch.setattr("spark_mq.console.message_pages._RELATED_BYTES", 1)
    assert "more topics were not looked at" in page(client, address).text


def test_an_empty_queue_has_no_offsets(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    text = page(client, f"/topic?name=Orders&queue=0&offset={ORDERS}").text
    assert f"no offset of 0 to {ORDERS // 2 - 1}" in re.sub(r"\s+", " ", text)


def test_dead_letters_are_replayed_once(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root, allows_changes=True)
    for said in ("3 replayed", "nothing to replay"):
        begun = client.post("/dead-letters/replay", data=form_of(client))
        assert (begun.status_code, begun.headers["location"]) == (303, "/dead-letters?group=billing")
        assert said in after_run(client)
    with open_store(root) as store:
        assert sum(store.max_offset("Orders", queue_id) for queue_id in (0, 1)) == ORDERS + 3


def test_a_form_that_is_sent_twice_replays_once(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root, allows_changes=True)
    fields = {**form_of(client), "again": "1"}
    assert "number" in fields
    for _ in range(2):
        assert client.post("/dead-letters/replay", data=fields).status_code == 303
        assert "3 replayed" in after_run(client)
    with open_store(root) as store:
        assert sum(store.max_offset("Orders", queue_id) for queue_id in (0, 1)) == ORDERS + 3


def test_the_end_of_the_console_ends_a_replay_before_its_next_burst(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root, allows_changes=True)
    replays = client.app._app.state.console.replays  # type: ignore[attr-defined]
    assert client.post("/dead-letters/replay", data={**form_of(client), "rate": "1"}).status_code == 303
    replays.close()
    assert replays.last is not None
    assert any("left: the run was stopped" in line for line in replays.last.lines)


def test_a_replay_needs_permission_and_a_form_of_this_console(root: Path, open_console: OpenConsole) -> None:
    before = picture(root)
    allowed, reading = open_console(root, allows_changes=True), open_console(root)
    fields = form_of(allowed)
    for wrong in ({}, {"form": "x"}, {"form": fields["form"] + "x"}):
        refused = allowed.post("/dead-letters/replay", data={"group": "billing", **wrong})
        assert (refused.status_code, "not of this console" in refused.text) == (403, True)
    assert allowed.post("/dead-letters/replay", data=fields, headers={"origin": "http://x"}).status_code == 403
    own = {**fields, "form": reading.get("/dead-letters?group=billing").text}
    assert reading.post("/dead-letters/replay", data={**own, "form": "x"}).status_code == 403
    assert 'action="/dead-letters/replay"' not in reading.get("/dead-letters?group=billing").text
    assert picture(root) == before


def test_a_console_that_only_looks_refuses_its_own_form(root: Path, open_console: OpenConsole) -> None:
    before = picture(root)
    client = open_console(root)
    form = client.app._app.state.console.access.form  # type: ignore[attr-defined]
    refused = client.post("/dead-letters/replay", data={"form": form, "group": "billing"})
    assert (refused.status_code, "this console changes nothing" in refused.text) == (403, True)
    assert picture(root) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to": "elsewhere"}, "to must be one of"),
        ({"since": "yesterday"}, "expected ms since the epoch"),
        ({"limit": "0"}, "at least 1"),
        ({"rate": "-1"}, "rate must be a whole number"),
        ({"group": "a/b"}, "illegal"),
        ({"note": "x" * 70_000}, "the form has more than"),
    ],
)
def test_wrong_fields_are_said_before_a_run_begins(
    fields: dict[str, str], said: str, root: Path, open_console: OpenConsole
) -> None:
    client = open_console(root, allows_changes=True)
    refused = client.post("/dead-letters/replay", data={**form_of(client), **fields})
    assert (refused.status_code, said in Structure(refused.text).text) == (400, True)
    assert "last replay" not in client.get("/dead-letters/run").text
