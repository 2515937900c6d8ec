"""The command lag: who is behind, in each form, sorted, with totals; names of others stay harmless in spreadsheets and pages."""

from __future__ import annotations

import csv
import io
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.cli.pages import Sheet, render_page
from spark_mq.cli.visible_text import visible
from spark_mq.client.errors import ClientError
from spark_mq.lag.figures import LagReport
from spark_mq.lag.of_stores import StoreLag
from spark_mq.terminal import print_csv
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.tables.offline_changes import write_group_offsets
from tests.support.commands import json_of, run

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "a\u202egpj.exe",
    "x\x00\x1b[31m",
    "&lt;",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `orders` with 10 messages in each of two queues, `audit` with 4 in one."""
    path = tmp_path / "store"
    with open_store(path, read_only=False, create=True) as store:
        for queue_id in (0, 1):
            for _ in range(10):
                store.put("orders", b"x", queue_id=queue_id, queue_count=2)
        for _ in range(4):
            store.put("audit", b"x", queue_id=0, queue_count=1)
    for group, offsets in {
        "slow": {("orders", 0): 1, ("orders", 1): 5},
        "done": {("orders", 0): 10, ("orders", 1): 10},
        "part": {("orders", 0): 9, ("audit", 0): 2},
    }.items():
        write_group_offsets(str(path), group, offsets, now_ms=1, file_system=LocalFileSystem())
    return path


def test_a_line_a_group_the_one_that_is_most_behind_first(root: Path) -> None:
    lines = json_of("lag", root)
    assert [(line["group"], line["lag"], line["queues"], line["unknown_queues"]) for line in lines] == [
        ("slow", 14, 2, 0),
        ("part", 3, 3, 1),
        ("done", 0, 2, 0),
    ]
    assert (lines[0]["worst"]["queue_id"], lines[0]["worst"]["lag"]) == (0, 9)
    table = run("lag", root, COLUMNS="160")
    assert [line.split()[0] for line in table.splitlines() if line] == ["group", "slow", "part", "done", "all"]
    assert "17" in table.splitlines()[4], "the sum"


def test_lines_are_sorted_and_left_out_as_is_wanted(root: Path) -> None:
    assert [line["group"] for line in json_of("lag", root, "--sort", "name")] == ["done", "part", "slow"]
    assert [line["group"] for line in json_of("lag", root, "--behind")] == ["slow", "part"]
    assert [(line["group"], line["lag"]) for line in json_of("lag", root, "--topic", "audit")] == [("part", 2)]
    by_queue = json_of("lag", root, "--queues", "--behind", "--topic", "orders")
    assert [(line["group"], line["queue_id"], line["lag"]) for line in by_queue] == [
        ("slow", 0, 9),
        ("slow", 1, 5),
        ("part", 0, 1),
        ("part", 1, None),
    ]
    assert "there is no topic order" in run("lag", root, "--topic", "order", exit_code=1)


def test_the_exit_code_is_1_where_a_group_is_further_behind(root: Path) -> None:
    for most, exit_code in (("14", 0), ("13", 1)):
        result = CliRunner().invoke(app, ["lag", str(root), "--group", "slow", "--fail-above", most])
        assert result.exit_code == exit_code
        assert ("group slow has 14 unread messages, more than 13" in result.stderr) == bool(exit_code)
        assert "slow" in result.stdout, "the table is there either way"


def test_an_unknown_lag_is_never_below_a_bound(root: Path) -> None:
    write_group_offsets(
        str(root), "ahead", {("orders", 0): 10, ("orders", 1): 900}, now_ms=1, file_system=LocalFileSystem()
    )
    result = CliRunner().invoke(app, ["lag", str(root), "--fail-above", "1000"])
    assert result.exit_code == 1
    name = json_of("topics", root)[0]["broker_name"]
    told = f"the lag of group part is unknown in orders/{name}/1: no offset is stored"
    assert told in result.stderr
    assert f"orders/{name}/1: the stored offset 900 is behind the queue's end 10" in result.stderr
    assert "slow" not in result.stderr
    assert run("lag", root), "without a bound it is no failure"


def test_nothing_to_check_is_not_below_a_bound(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("orders", b"x")
    assert "no lag was checked" in run("lag", tmp_path / "store", "--fail-above", "5", exit_code=1)


def test_a_watch_goes_on_where_a_look_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look, looks = StoreLag.look, iter((None, ClientError("no name server"), None, KeyboardInterrupt()))

    def planned(self: StoreLag, *given: Any) -> LagReport:
        if (error := next(looks)) is not None:
            raise error
        return look(self, *given)

    monkeypatch.setattr(StoreLag, "look", planned)
    result = CliRunner().invoke(app, ["lag", str(root), "--watch", "0.1", "--json"])
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr == "no answer: no name server\n"


def test_forms_exclude_each_other_and_what_goes_on_until_ctrl_c(root: Path) -> None:
    assert "give one of" in run("lag", root, "--csv", "--html", exit_code=2)
    assert "--watch" in run("lag", root, "--watch", "1", "--fail-above", "3", exit_code=2)


def test_csv_has_the_figures_of_json(root: Path) -> None:
    for options in ([], ["--queues"]):
        rows = list(csv.DictReader(io.StringIO(run("lag", root, "--csv", *options))))
        entries = json_of("lag", root, *options)
        for row, entry in zip(rows, entries, strict=True):
            for name in entry.keys() & row.keys() - {"topics", "oldest_unread_ms"}:
                assert row[name] == ("" if entry[name] is None else str(entry[name])), name
    worst = next(csv.DictReader(io.StringIO(run("lag", root, "--csv"))))
    assert (worst["worst_topic"], worst["worst_queue_id"], worst["worst_lag"]) == ("orders", "0", "9")


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"])
def test_what_a_spreadsheet_would_calculate_is_a_text(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(("name", "count"), [(cell, -1), ("plain", 2)])
    head, first, second = csv.reader(io.StringIO(capsys.readouterr().out, newline=""))
    assert (head, first, second) == (["name", "count"], [f"'{cell}", "-1"], ["plain", "2"])


class Page(HTMLParser):
    """The tags and texts of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def assert_harmless(self) -> None:
        """No script, nothing that a browser fetches or calls."""
        names = {tag for tag, _ in self.tags}
        assert names <= {
            *("html", "head", "meta", "title", "style", "body", "footer", "h1", "h2", "p", "div", "bdi"),
            *("table", "thead", "tbody", "tfoot", "tr", "th", "td"),
        }
        assert {name for _, attributes in self.tags for name in attributes} <= {
            *("lang", "charset", "name", "content", "http-equiv", "class"),
        }


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_shows_the_names_of_others_as_text(text: str) -> None:
    sheet = Sheet(("group", "topic"), [(text, 1)], total=(text, None))
    page = Page(render_page("lag.html", title=text, place=text, time=text, troubles=[text], sheet=sheet))
    page.assert_harmless()
    assert page.texts.count(visible(text)) >= 4
    assert not [one for one in page.texts if any(mark in one for mark in "\u202e\x00\x1b")]


def test_lag_as_a_page_is_one_file_with_the_figures(root: Path) -> None:
    for options in ([], ["--queues"]):
        page = Page(run("lag", root, "--html", *options))
        page.assert_harmless()
        assert {"slow", "part", "done"} <= set(page.texts)
    policy = [attributes["content"] for tag, attributes in page.tags if tag == "meta" and "http-equiv" in attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_without_jinja2_a_page_names_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    text = run("lag", root, "--html", exit_code=1)
    assert "Jinja2" in text
    assert "pip install 'spark_mq[console]'" in text


def test_a_query_of_spark_is_a_line_by_its_checkpoint(root: Path, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"q"}', "utf-8")
    broker_name = json_of("topics", root)[0]["broker_name"]
    tree: dict[str, Any] = {"orders": {broker_name: {"0": {"next": 3, "before": None}}}}
    (directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(tree)}", "utf-8")
    (directory / "commits" / "0").write_text("v1\n{}", "utf-8")
    lines = {(line["kind"], line["group"]): line for line in json_of("lag", root, "--checkpoint", directory)}
    assert lines["query", str(directory)]["lag"] == 7
    assert "(Spark query)" in run("lag", root, "--checkpoint", directory)
    (directory / "commits" / "0").unlink()
    failed = run("lag", root, "--checkpoint", directory, exit_code=1)
    assert "slow" in failed, "the others are there"
    assert "no batch of this query is done" in failed
    assert "is no checkpoint" in run("lag", root, "--checkpoint", tmp_path / "none", exit_code=2)
