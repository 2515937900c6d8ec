"""Messages in a form of kcat's words, and which of them dump prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app, cluster
from spark_mq.cli.message_lines import LineFormat
from spark_mq.client.message import MessageExt
from spark_mq.terminal import UsageError
from storage import open_store
from storage.format.record import COMPRESSED
from storage.rules.inner_messages import InnerMessage
from tests.support.commands import lines_of, run

LINE = {
    "topic": "orders",
    "broker_name": "broker-a",
    "queue_id": 3,
    "queue_offset": 17,
    "msg_id": "7F00",
    "unique_key": "U1",
    "tags": "paid",
    "keys": "k1 k2",
    "body": "grün\n",
    "properties": {"KEYS": "k1 k2", "region": "eu"},
    "store_timestamp": 1_767_225_600_123,
}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (r"Topic %t [%p] at offset %o: key %k: %s\n", "Topic orders [3] at offset 17: key k1 k2: grün\n\n".encode()),
        ("%T %h", b"1767225600123 KEYS=k1 k2,region=eu"),
        ("%K %S", b"5 6"),
        ("%R", (6).to_bytes(4, "big")),
        ("%b/%g/%u/%i", b"broker-a/paid/U1/7F00"),
        (r"100%% \\ \t\r\x41\x0a", b"100% \\ \t\rA\n"),
        ("", b""),
        ("ü", "ü".encode()),
    ],
)
def test_each_word_stands_for_a_part_of_the_message(form: str, expected: bytes) -> None:
    assert LineFormat(form).render(LINE) == expected


def test_what_a_message_does_not_have_is_empty_and_as_long_as_in_kcat() -> None:
    bare = {**LINE, "keys": None, "tags": None, "properties": {}, "body": ""}
    assert LineFormat("[%k][%K][%g][%h][%s][%S]").render(bare) == b"[][-1][][][][0]"
    corrupt = {**LINE, "body": None, "_corrupt": "no zlib"}
    assert LineFormat("[%s][%S]").render(corrupt) == b"[][-1]"
    binary = {name: value for name, value in LINE.items() if name != "body"} | {"body_base64": "/wCA"}
    assert LineFormat("%s").render(binary) == b"\xff\x00\x80"


@pytest.mark.parametrize("form", ["%y", "%", r"\q", "\\"])
def test_a_word_that_is_none_is_refused(form: str) -> None:
    with pytest.raises(UsageError, match="-f: "):
        LineFormat(form)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five messages in queue 0, a second apart, two in queue 1."""
    now = [1_767_225_600_000]
    with open_store(tmp_path / "store", read_only=False, create=True, clock=lambda: now[0]) as store:
        for number in range(7):
            store.put("orders", b"%d\xff" % number, queue_id=int(number > 4), queue_count=2, keys="k")
            now[0] += 1_000
    return tmp_path / "store"


def offsets_of(root: Path, *options: str) -> list[tuple[int, int]]:
    return [(line["queue_id"], line["queue_offset"]) for line in lines_of("dump", root, "--topic", "orders", *options)]


def test_a_dump_begins_where_it_is_told(root: Path) -> None:
    assert offsets_of(root, "--last", "1") == [(0, 4), (1, 1)]
    assert offsets_of(root, "--last", "99") == offsets_of(root)
    assert offsets_of(root, "--from-time", "1767225603000") == [(0, 3), (0, 4), (1, 0), (1, 1)]
    assert offsets_of(root, "--from-time", "2027-01-01") == []
    assert offsets_of(root, "--last", "3", "--to", "4", "--queue-id", "0") == [(0, 2), (0, 3)]
    assert "give one of --from, --last and --from-time" in run("dump", root, "--last", "1", "--from", "0", exit_code=2)


def test_a_dump_has_the_bytes_of_the_bodies(root: Path) -> None:
    result = CliRunner().invoke(app, ["dump", str(root), "--topic", "orders", "--last", "1", "-f", r"%p:%o:%s;"])
    assert result.exit_code == 0
    assert result.stdout_bytes == b"0:4:4\xff;1:1:6\xff;"
    assert "give --format or --java" in run("dump", root, "-f", "%s", "--java", exit_code=2)
    assert "%y is no word" in run("dump", root, "-f", "%y", exit_code=2)


def test_a_body_that_does_not_decompress_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_store(path, read_only=False, create=True) as store:
        store.put_inner(
            [InnerMessage(topic="Topic", queue_id=0, body=b"no stream", properties={}, sys_flag=COMPRESSED)]
        )
        store.put("Topic", b"good", queue_id=0)
    result = CliRunner().invoke(app, ["dump", str(path), "--topic", "Topic", "-f", r"%o %s\n"])
    assert (result.exit_code, result.stdout) == (1, "0 \n1 good\n")
    assert "no body: Topic queue 0 offset 0: " in result.stderr


def test_a_consumed_body_that_does_not_decompress_is_named_and_the_exit_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = InnerMessage(topic="Topic", queue_id=0, body=b"no stream", properties={}, sys_flag=COMPRESSED)
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put_inner([bad])
        store.put("Topic", b"good", queue_id=0)
        messages = [MessageExt.of(message, "b") for message in store.get("Topic", 0, 0, 2).messages]
    monkeypatch.setattr(cluster, "_check_consumed", lambda *_: None)
    monkeypatch.setattr(cluster, "_pull", lambda _settings, _consumed, printed, _goes_on: printed.add(messages))
    command = ["consume", "--topic", "Topic", "--group", "g", "-n", "127.0.0.1:1"]
    result = CliRunner().invoke(app, [*command, "-f", r"%o %s\n"])
    assert (result.exit_code, result.stdout) == (1, "0 \n1 good\n")
    assert "no body: Topic queue 0 offset 0: " in result.stderr
    assert CliRunner().invoke(app, [*command, "--bodies"]).exit_code == 0, "JSON says so itself"


def test_half_of_a_surrogate_pair_is_no_end_of_a_dump() -> None:
    assert LineFormat("%h \udce9").render(LINE | {"properties": {"a": "\udcff"}}) == b"a=\xff \xe9"


def test_what_a_query_prints_as_json_produce_takes(root: Path, tmp_path: Path) -> None:
    lines = run("query", root, "--topic", "orders", "--key", "k", "--json")
    assert len(lines.splitlines()) == 7
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "copy"), "--json"], input=lines)
    assert result.exit_code == 0, result.output
    kept = [
        sorted((line["queue_id"], line["body_base64"], line["keys"]) for line in lines_of("dump", path, "--bodies"))
        for path in (root, tmp_path / "copy")
    ]
    assert kept[0] == kept[1]
    assert [json.loads(line)["topic"] for line in lines.splitlines()] == ["orders"] * 7
