"""Dead letters go back to their topics: each once, whatever kills the job, and with a note of what became of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ParseException

from jobs import replay_dead_letters as job
from jobs.replay_dead_letters import LEFT, LOCK, STOPPED, Pace, StoreLetters, main, replay_letters, settle_open_plans
from spark_mq import replay as replaying
from spark_mq.client.errors import NameServerUnreachableError
from spark_mq.conditions import SparkMqError, as_condition, may_pass
from spark_mq.replay import (
    DeadLetter,
    OpenPlan,
    Outcome,
    find_copies,
    replay,
    target_of,
    topic_of,
    with_property,
    without_copies,
)
from spark_mq.replay_audit import failures_in_one_line, table_location
from spark_mq.source import rows
from spark_mq.terminal import FAILED, exit_code_of
from storage import Message, MessageStore, open_store
from storage.errors import StoreLockedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import COMPRESSED
from storage.rules.inner_messages import InnerMessage
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture
from tests.support.places import PROJECT

GROUP, DEAD = "G", "%DLQ%G"
LEFT_BY_RETRIES = {
    "RETRY_TOPIC": "Orders",
    "ORIGIN_MESSAGE_ID": "7F",
    "DELAY": "0",
    "REAL_TOPIC": "%RETRY%G",
    "REAL_QID": "0",
}


def dead_letter(number: int, **properties: str) -> InnerMessage:
    own = {"UNIQ_KEY": f"K{number}", "TAGS": "paid", "KEYS": f"order-{number}", "own": "x", "WAIT": "false"}
    return InnerMessage(
        topic=DEAD,
        queue_id=0,
        body=f"body {number}".encode(),
        properties={**own, **LEFT_BY_RETRIES, **properties},
        flag=number,
        born_time_ms=1_600_000_000_000 + number,
        reconsume_times=16,
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with topic Orders and seven dead letters."""
    root = str(tmp_path / "store")
    settings = {
        "mappedFileSizeCommitLog": 1 << 17,
        "mappedFileSizeConsumeQueue": 2_000,
        "maxHashSlotNum": 10,
        "maxIndexNum": 20,
    }
    (tmp_path / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with opened(root, create=True) as store:
        store.save_topic(TopicConfig("Orders", 2, 2))
        store.put_inner([dead_letter(number) for number in range(7)])
    return root


def opened(path: str, **options: Any) -> MessageStore:
    return open_store(path, read_only=False, **options)


def letters_of(store: MessageStore) -> list[DeadLetter]:
    return [
        DeadLetter(
            0, message.queue_offset, message.msg_id, message.unique_key, message.properties.get("RETRY_TOPIC", DEAD)
        )
        for message in all_of(store, DEAD)
    ]


def all_of(store: MessageStore, topic: str) -> list[Message]:
    return [message for queue_id in store.queue_ids(topic) for message in store.get(topic, queue_id, 0, 100).messages]


@dataclass
class NotedAudit:
    """An audit in memory; `fails_at_note` ends the process, as it were, before the outcomes of a run are noted."""

    fails_at_note: bool = False
    rows: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def open_plans(self) -> list[OpenPlan]:
        runs: dict[str, OpenPlan] = {}
        for (run, _), (letter, result, log_end, _) in self.rows.items():
            if result == "planned":
                runs.setdefault(run, OpenPlan(run, log_end, [])).letters.append(letter)
        return list(runs.values())

    def plan(self, run: str, letters: Sequence[DeadLetter], log_end: int) -> None:
        self.rows |= {(run, letter.msg_id): [letter, "planned", log_end, None] for letter in letters}

    def note(self, run: str, outcomes: Sequence[Outcome]) -> None:
        if self.fails_at_note:
            raise KeyboardInterrupt
        for outcome in outcomes:
            row = self.rows[run, outcome.letter.msg_id]
            row[1], row[3] = outcome.result, outcome.new_msg_id

    def results(self) -> list[str]:
        return [result for _, result, _, _ in self.rows.values()]


# The copies


def test_a_copy_is_a_new_message_with_what_the_producer_gave_it(path: str) -> None:
    with opened(path) as store:
        letters = letters_of(store)
        outcomes = replay(store, GROUP, letters)
        copies = {message.unique_key: message for message in all_of(store, "Orders")}
        dead = all_of(store, DEAD)
    assert [outcome.result for outcome in outcomes] == ["replayed"] * 7
    assert [outcome.letter for outcome in outcomes] == letters
    assert [copies[letter.unique_key].msg_id for letter in letters] == [outcome.new_msg_id for outcome in outcomes]
    assert len(dead) == 7, "dead letters stay"
    copy = copies["K3"]
    assert (copy.body, copy.flag, copy.reconsume_times) == (b"body 3", 3, 0)
    assert copy.born_time_ms == 1_600_000_000_003
    assert {name: copy.properties[name] for name in ("TAGS", "KEYS", "own", "REPLAYED_FROM")} == {
        "TAGS": "paid",
        "KEYS": "order-3",
        "own": "x",
        "REPLAYED_FROM": dead[3].msg_id,
    }
    assert not set(LEFT_BY_RETRIES) & set(copy.properties)


def test_a_copy_that_died_again_names_the_newer_dead_letter(path: str) -> None:
    with opened(path) as store:
        store.put_inner([dead_letter(8, REPLAYED_FROM="OLD")])
        replay(store, GROUP, letters_of(store)[-1:])
        (copy,) = all_of(store, "Orders")
        assert copy.raw_properties.count(b"REPLAYED_FROM") == 1
        assert copy.properties["REPLAYED_FROM"] == all_of(store, DEAD)[-1].msg_id


def test_what_cannot_be_copied_is_refused_alone_and_says_why(path: str) -> None:
    with opened(path) as store:
        store.put_inner(
            [
                dead_letter(7, RETRY_TOPIC="Missing"),
                dead_letter(8, RETRY_TOPIC="SCHEDULE_TOPIC_XXXX"),
                dead_letter(9, TAGS="a\tb"),
            ]
        )
        letters = letters_of(store)
        gone = [letters[0]._replace(queue_offset=99), letters[0]._replace(msg_id="another")]
        outcomes = replay(store, GROUP, [*letters, *gone])
        assert len(all_of(store, "Orders")) == 7
    assert [outcome.result for outcome in outcomes] == ["replayed"] * 7 + ["refused"] * 5
    reasons = [outcome.reason or "" for outcome in outcomes[7:]]
    assert "there is no topic 'Missing'" in reasons[0]
    assert "it is a system topic" in reasons[1]
    assert reasons[2] == "tags: it holds a control character"
    assert reasons[3] == reasons[4] == "it is not there any more"


def test_a_copy_for_the_group_alone_lies_in_its_retry_topic_as_a_first_try(path: str) -> None:
    """DefaultMQPushConsumerImpl.resetRetryAndNamespace gives it to listeners under RETRY_TOPIC."""
    with opened(path) as store:
        store.put_inner([with_fields(dead_letter(7), body=zlib.compress(b"long" * 2_000), sys_flag=COMPRESSED)])
        letters = letters_of(store)
        outcomes = replay(store, GROUP, letters, "retry")
        copies = {message.unique_key: message for message in all_of(store, "%RETRY%G")}
        assert not all_of(store, "Orders")
        assert without_copies(store, GROUP, letters) == [], "nor does a run to the topic make another copy"
    assert [outcome.result for outcome in outcomes] == ["replayed"] * 8
    assert [copies[letter.unique_key].msg_id for letter in letters] == [outcome.new_msg_id for outcome in outcomes]
    assert copies["K7"].plain_body == b"long" * 2_000
    copy = copies["K3"]
    assert (copy.body, copy.flag, copy.reconsume_times, copy.born_time_ms) == (b"body 3", 3, 0, 1_600_000_000_003)
    assert copy.properties == {
        "RETRY_TOPIC": "Orders",
        "REPLAYED_FROM": letters[3].msg_id,
        "own": "x",
        "TAGS": "paid",
        "KEYS": "order-3",
        "UNIQ_KEY": "K3",
    }


@pytest.mark.parametrize(("origin", "topic"), [("Orders", "%RETRY%G"), ("%RETRY%G+Orders", "%RETRY%G+Orders")])
def test_the_retry_topic_of_a_pop_consumer_is_the_one_that_the_letter_came_from(origin: str, topic: str) -> None:
    assert target_of(origin, GROUP, "retry") == topic


def test_a_body_that_does_not_decompress_is_refused_alone_and_says_why(path: str) -> None:
    with opened(path) as store:
        store.put_inner([with_fields(dead_letter(7), body=b"no such stream", sys_flag=COMPRESSED), dead_letter(8)])
        outcomes = replay(store, GROUP, letters_of(store))
        assert len(all_of(store, "Orders")) == 8
    assert [outcome.result for outcome in outcomes] == ["replayed"] * 7 + ["refused", "replayed"]
    assert "body: bad body: expected bytes compressed" in (outcomes[7].reason or "")


def test_bodies_that_grow_in_the_clear_are_copied_in_parts(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is stored in a few bytes; together they would be more than a process, or one binary array, holds."""
    for module in (rows, replaying):
        monkeypatch.setattr(module, "PLAIN_BYTES", 100_000)
    with opened(path) as store:
        plain = [bytes([number]) * 60_000 for number in range(7, 12)]
        store.put_inner(
            [
                with_fields(dead_letter(number), body=zlib.compress(body), sys_flag=COMPRESSED)
                for number, body in enumerate(plain, 7)
            ]
        )
        letters = letters_of(store)
        sizes: list[int] = []
        put_batch = store.put_batch

        def measured(batch: pa.Table, **rules: Any) -> pa.RecordBatch:
            sizes.append(batch.column("body").nbytes)
            return put_batch(batch, **rules)

        monkeypatch.setattr(store, "put_batch", measured)
        outcomes = replay(store, GROUP, [*letters[6:], *letters[:6]])
        copies = {message.unique_key: message for message in all_of(store, "Orders")}
    assert [outcome.letter for outcome in outcomes] == [*letters[6:], *letters[:6]]
    assert [outcome.result for outcome in outcomes] == ["replayed"] * 12
    assert [copies[f"K{number}"].plain_body for number in range(7, 12)] == plain
    assert len(sizes) > 1, "one put for what is together no more than PLAIN_BYTES"
    assert max(sizes) < 100_000 + 60_000


def test_letters_far_apart_are_copied_by_one_put(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each put is a sync under SYNC_FLUSH."""
    puts: list[int] = []
    with opened(path) as store:
        put_batch = store.put_batch

        def counted(batch: pa.Table, **rules: Any) -> pa.RecordBatch:
            puts.append(len(batch))
            return put_batch(batch, **rules)

        monkeypatch.setattr(store, "put_batch", counted)
        replay(store, GROUP, letters_of(store)[::2])
    assert puts == [4]


@pytest.mark.parametrize(
    ("origin", "topic"),
    [
        ("Orders", "Orders"),
        ("%RETRY%G_Orders", "Orders"),
        ("%RETRY%G+Orders", "Orders"),
        ("%RETRY%G", "%RETRY%G"),
        ("%RETRY%G_", "%RETRY%G_"),
        ("%RETRY%Go_Orders", "%RETRY%Go_Orders"),
    ],
)
def test_a_pop_retry_topic_stands_for_the_topic_behind_the_group(origin: str, topic: str) -> None:
    """KeyBuilder.parseNormalTopic."""
    assert topic_of(origin, GROUP) == topic


def test_an_entry_of_a_map_is_set_in_each_row() -> None:
    maps = pa.array(
        [[("a", "1"), ("n", "old")], [], [("n", "x"), ("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string())
    )
    made = with_property(maps.slice(1), "n", pa.array(["p", "q", "r"]))
    assert made.to_pylist() == [[("n", "p")], [("b", "2"), ("n", "q")], [("c", "3"), ("n", "r")]]


# Where they lie


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give PATH, or the address of a name server"),
        (["STORE", "-n", "h:1"], "give PATH or --name-server, not both"),
        (["STORE", "--tls"], "option --tls: belongs to --name-server, and a store is named"),
        (["STORE", "--request-timeout", "9s"], "option --request-timeout: belongs to --name-server"),
        (["-n", "h:1", "--conf", "broker.conf"], "option --conf: is for stores"),
        (["-n", "nonsense"], "option --name-server: "),
        (["-n", "h:1", "--secret-key-file", "x"], "option --secret-key-file: needs --access-key"),
        (["-n", "h:1", "--tls-ca-file", "x"], "option --tls: options that begin with --tls- need --tls"),
    ],
)
def test_a_store_or_a_cluster_is_named_and_its_own_options_alone(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--group", GROUP]) == 2
    assert told in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_a_failure_and_may_answer_at_the_next_turn() -> None:
    unreachable = NameServerUnreachableError([("h:1", "no connection")])

    def ask() -> None:
        try:
            raise unreachable
        except NameServerUnreachableError as error:
            raise as_condition(error) from None

    with pytest.raises(SparkMqError) as told:
        ask()
    assert exit_code_of(told.value) == FAILED
    assert may_pass(told.value)


# Once each


def test_every_letter_is_replayed_and_noted(path: str) -> None:
    audit = NotedAudit()
    with opened(path) as store:
        letters = letters_of(store)
    assert replay_letters(StoreLetters(path, GROUP), letters, audit) == {"replayed": 7}
    assert audit.results() == ["replayed"] * 7
    assert replay_letters(StoreLetters(path, GROUP), [], audit) == {}


def test_a_run_that_is_killed_before_it_noted_anything_is_found_in_the_log(path: str) -> None:
    audit = NotedAudit(fails_at_note=True)
    with opened(path) as store:
        letters = letters_of(store)
        replay(store, GROUP, letters[:1])  # a copy of another time, before the plan
    with pytest.raises(KeyboardInterrupt):
        replay_letters(StoreLetters(path, GROUP), letters, audit)
    audit.fails_at_note = False
    assert audit.results() == ["planned"] * 7
    assert settle_open_plans(StoreLetters(path, GROUP), audit) == 7
    assert audit.results() == ["replayed"] * 7
    with opened(path) as store:
        newest = {m.properties["REPLAYED_FROM"]: m.msg_id for m in sorted(all_of(store, "Orders"), key=by_place)}
    assert {letter.msg_id: new_id for letter, _, _, new_id in audit.rows.values()} == newest
    assert settle_open_plans(StoreLetters(path, GROUP), audit) == 0


def by_place(message: Message) -> int:
    return message.commitlog_offset


@pytest.mark.parametrize("made", [0, 3])
def test_of_a_run_that_is_killed_on_its_way_the_rest_is_not_made(path: str, made: int) -> None:
    audit = NotedAudit()
    with opened(path) as store:
        letters = letters_of(store)
        audit.plan("run", letters, store.log_end)
        replay(store, GROUP, letters[:made])
    settle_open_plans(StoreLetters(path, GROUP), audit)
    assert audit.results() == ["replayed"] * made + ["not_made"] * (7 - made)


def test_where_the_log_has_expired_since_the_plan_nobody_knows(path: str) -> None:
    audit = NotedAudit()
    with opened(path) as store:
        letters = letters_of(store)
        audit.plan("run", letters, store.log_end)
        replay(store, GROUP, letters[:3])
        for _ in range(3):  # into the next file
            store.put("Filler", b"x" * 60_000)
        first = store.log.files[0]
    os.unlink(Path(path) / "commitlog" / f"{first.start:020d}")
    settle_open_plans(StoreLetters(path, GROUP), audit)
    assert audit.results() == ["unknown"] * 7


def test_copies_before_a_place_are_not_counted(path: str) -> None:
    with opened(path) as store:
        letters = letters_of(store)
        replay(store, GROUP, letters)
        end = store.log_end
        second = replay(store, GROUP, letters[:2])
        ids = {letter.msg_id for letter in letters}
        assert find_copies(store, {"Orders"}, ids, end) == {o.letter.msg_id: o.new_msg_id for o in second}
        assert len(find_copies(store, {"Orders"}, ids, 0)) == 7
        assert find_copies(store, {"Nowhere"}, ids, 0) == {}


# Alone, and not too fast


def test_a_store_that_another_writer_has_is_left_with_nothing_planned(path: str) -> None:
    audit = NotedAudit()
    with opened(path) as store:
        letters = letters_of(store)
        with pytest.raises(StoreLockedError):
            replay_letters(StoreLetters(path, GROUP), letters, audit)
    assert audit.rows == {}


def test_a_writer_that_comes_between_two_bursts_leaves_the_rest_to_the_next_run(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put is noted; the rest stays planned, which the next run finds not made."""
    monkeypatch.setattr(job, "PATIENCE_MS", 0)
    audit = NotedAudit()
    others: list[MessageStore] = []

    def sleep(seconds: float) -> None:
        if seconds and not others:
            others.append(opened(path))

    with opened(path) as store:
        letters = letters_of(store)
    pace = Pace(3.0, clock=lambda: 0.0, sleep=sleep)
    replayed = replay_letters(StoreLetters(path, GROUP), letters, audit, pace=pace)
    others[0].close()
    assert replayed == {"replayed": 3, LEFT: 4}
    assert audit.results() == ["replayed"] * 3 + ["planned"] * 4
    assert settle_open_plans(StoreLetters(path, GROUP), audit) == 4
    assert audit.results() == ["replayed"] * 3 + ["not_made"] * 4


def test_a_run_that_is_stopped_ends_between_two_bursts_and_the_next_run_does_the_rest(path: str) -> None:
    audit = NotedAudit()
    with opened(path) as store:
        letters = letters_of(store)
    slept: list[float] = []
    pace = Pace(3.0, clock=lambda: 0.0, sleep=slept.append, is_stopping=lambda: len(slept) > 1)
    assert replay_letters(StoreLetters(path, GROUP), letters, audit, pace=pace) == {"replayed": 3, STOPPED: 4}
    assert audit.results() == ["replayed"] * 3 + ["planned"] * 4
    again = NotedAudit()
    assert replay_letters(StoreLetters(path, GROUP), letters, again, pace=pace) == {STOPPED: 7}
    assert again.results() == [], "nothing was planned"
    assert settle_open_plans(StoreLetters(path, GROUP), audit) == 4
    assert audit.results() == ["replayed"] * 3 + ["not_made"] * 4


def test_a_store_that_was_closed_cleanly_is_closed_cleanly_again(path: str) -> None:
    audit = NotedAudit(fails_at_note=True)
    with opened(path) as store:
        letters = letters_of(store)
    with pytest.raises(KeyboardInterrupt):
        replay_letters(StoreLetters(path, GROUP), letters, audit)
    assert not Path(path, "abort").exists()
    audit.fails_at_note = False
    settle_open_plans(StoreLetters(path, GROUP), audit)
    assert not Path(path, "abort").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at ')'.\n== SQL ==\n1)", "[PARSE_SYNTAX_ERROR] Syntax error at ')'."),
        (
            "[SCAN] failed: Traceback\n  File x\nE: [SPARK_MQ_STORE_DAMAGED] at 8\n more",
            "[SPARK_MQ_STORE_DAMAGED] at 8",
        ),
        ("", "ParseException"),
    ],
)
def test_what_spark_fails_at_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(SparkMqError) as failure, failures_in_one_line("audit /table"):
        raise ParseException(text)
    assert str(failure.value) == f"[SPARK_MQ_ERROR] audit /table: {told}"


@pytest.mark.parametrize("path", ["s3a://bucket/audit", "file:/data/audit", "hdfs://name/audit", "/data/audit"])
def test_an_audit_with_a_scheme_or_a_root_is_where_it_says(path: str) -> None:
    assert table_location(path) == path


def test_a_relative_audit_lies_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta takes a relative path for the name of a table."""
    monkeypatch.chdir(tmp_path)
    assert table_location("lab/audit") == str(tmp_path / "lab" / "audit")


def test_bursts_keep_the_rate(path: str) -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    with opened(path) as store:
        letters = letters_of(store)
    replay_letters(StoreLetters(path, GROUP), letters, NotedAudit(), pace=Pace(2.0, clock=lambda: now, sleep=sleep))
    assert slept == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("rate", "sizes"), [(None, [500, 500, 200]), (0.1, [1] * 1_200), (999, [500, 500, 200])])
def test_a_burst_is_what_a_second_may_have(rate: float | None, sizes: list[int]) -> None:
    letters = [DeadLetter(0, number, "", None, "Orders") for number in range(1_200)]
    assert [len(burst) for burst in Pace(rate, sleep=lambda seconds: None).bursts(letters)] == sizes


def test_two_runs_exclude_each_other(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(path, "spark_mq").mkdir(exist_ok=True)
    with LocalFileSystem().locked(f"{path}/{LOCK}"):
        assert main([path, "--group", GROUP, "--audit", "no-matter"]) == 75
    assert "nothing done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--group", "no/group", "--dry-run"], 1, "character '/'"),
        (["--group", "Other", "--dry-run"], 0, "group Other has no dead letters"),
    ],
)
def test_what_makes_no_sense_is_said(
    arguments: list[str], code: int, told: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path, *arguments]) == code
    said = capsys.readouterr()
    assert told in said.out + said.err


@pytest.mark.parametrize("option", [["--since", "tomorrow"], ["--rate", "0"], ["--rate", "many"], ["--limit", "0"]])
def test_a_malformed_option_is_told(option: list[str], path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--group", GROUP, *option]) == 2
    assert option[0] in capsys.readouterr().err


def test_a_time_may_be_relative(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--group", "Other", "--dry-run", "--since=-2h", "--until", "-1h"]) == 0
    assert "no dead letters" in capsys.readouterr().out


# Without an audit


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_session(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark takes longer to start than a few letters to replay")

    monkeypatch.setattr("spark_mq.session.build_session", build_session)


@pytest.mark.usefixtures("no_spark")
def test_a_dry_run_lists_what_it_would_replay(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(path) as store:
        letters = letters_of(store)
    assert main([path, "--group", GROUP, "--dry-run"]) == 0
    listed = [
        f"{letter.msg_id} (queue 0 offset {letter.queue_offset}, {letter.unique_key}) to Orders" for letter in letters
    ]
    assert capsys.readouterr().out.splitlines() == [*listed, "would replay 7 to Orders"]
    with opened(path) as store:
        assert all_of(store, "Orders") == []


@pytest.mark.usefixtures("no_spark")
def test_without_an_audit_the_log_tells_what_was_replayed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    def ran(*options: str) -> list[str]:
        assert main([path, "--group", GROUP, *options]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("put ")]

    assert ran("--limit", "3") == ["more than 3 (--limit): run again for the rest", "3 replayed"]
    assert ran("--dry-run")[-1] == "would replay 4 to Orders"
    assert ran() == ["4 replayed"]
    assert ran() == ran("--dry-run") == ["nothing to replay"]
    assert ran("--again", "--limit", "1")[-1] == "1 replayed"
    with opened(path) as store:
        sources = [message.properties["REPLAYED_FROM"] for message in all_of(store, "Orders")]
        letters = [letter.msg_id for letter in letters_of(store)]
    assert sorted(sources) == sorted([*letters, letters[0]])


@pytest.mark.usefixtures("no_spark")
def test_a_run_that_is_killed_without_an_audit_is_gone_on_with(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(path) as store:
        replay(store, GROUP, letters_of(store)[2:5])
    assert main([path, "--group", GROUP]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "4 replayed"
    with opened(path) as store:
        assert sorted(message.unique_key or "" for message in all_of(store, "Orders")) == [
            f"K{number}" for number in range(7)
        ]


@pytest.mark.usefixtures("no_spark")
def test_letters_are_chosen_by_the_time_at_which_they_died(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(path) as store:
        store.put_inner([dead_letter(7)])
        times_ms = [message.store_time_ms for message in all_of(store, DEAD)]
    assert main([path, "--group", GROUP, "--dry-run", "--since", str(times_ms[-1])]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"would replay {times_ms.count(times_ms[-1])} to Orders"
    assert main([path, "--group", GROUP, "--dry-run", "--until", str(times_ms[0])]) == 0
    assert capsys.readouterr().out == "nothing to replay\n"


# With Spark and Delta


@pytest.fixture
def dead_letter_store(fixture_store: Callable[[str], Fixture]) -> Path:
    """The broker's own: four dead letters of GroupR, from TopicRetry."""
    return fixture_store("clean").root


@pytest.mark.spark
@pytest.mark.long
def test_the_job_replays_what_the_predicate_says_once_and_audits_it(dead_letter_store: Path, tmp_path: Path) -> None:
    script = f"""
import os, sys
from jobs.replay_dead_letters import SMALL_TABLES, main
from spark_mq import build_session
store, audit = {str(dead_letter_store)!r}, {str(tmp_path / "audit")!r}
spark = build_session("test", master="local[2]", delta=True, config=SMALL_TABLES)
def run(*options):
    print("RUN", *options, flush=True)
    assert main([store, "--group", "GroupR", "--master", "local[2]", *options]) == 0
run("--dry-run")
run("--audit", audit, "--where", "properties['TAGS'] = 'TagC' AND reconsume_times = 3")
run("--audit", audit, "--dry-run", "--until", "2000-01-01")
run("--audit", audit, "--dry-run")
run("--audit", audit, "--rate", "1000")
run("--audit", audit)
os.chdir(os.path.dirname(audit))
run("--audit", "audit", "--again", "--limit", "1")
assert main([store, "--group", "GroupR", "--dry-run", "--where", "nothing = 1"]) == 2
assert main([store, "--group", "GroupR", "--dry-run", "--where", "no predicate at all"]) == 2
rows = spark.read.format("delta").load(audit).orderBy("time").collect()
print("ROWS", [(row.consumer_group, row.dead_letter_offset, row.origin_topic, row.result) for row in rows])
copies = spark.read.format("spark_mq").option("path", store).option("topic", "TopicRetry").load()
copies = copies.where("properties['REPLAYED_FROM'] IS NOT NULL").selectExpr("msg_id", "properties['REPLAYED_FROM'] source")
assert {{(row.new_msg_id, row.dead_letter_msg_id) for row in rows}} == {{tuple(row) for row in copies.collect()}}
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = [line for line in ran.stdout.splitlines() if not line.startswith("RUN")]
    said = [line for line in told if "(queue 0 offset" not in line]
    assert len(told) - len(said) == 4 + 3, "a dry run lists each letter"
    assert [re.sub(" of .*", "", line) for line in said if line.startswith("put ")][:2] == [
        "put 1 messages",
        "put 3 messages",
    ]
    said = [line for line in said if not line.startswith("put ")]
    assert said[:6] == [
        "would replay 4 to TopicRetry",
        "1 replayed",
        "nothing to replay",
        "would replay 3 to TopicRetry",
        "3 replayed",
        "nothing to replay",
    ]
    assert said[6:8] == ["more than 1 (--limit): run again for the rest", "1 replayed"]
    assert said[8].count("'GroupR'") == said[8].count("'replayed'") == said[8].count("'TopicRetry'") == 5
    assert "where" in ran.stderr
    assert "QueryContextLogger" not in ran.stderr
