"""The queue checker itself: a sound history breaks no rule, and each rule, broken on purpose, is seen to be broken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import StoreConfig, open_store
from tests.support.queue_history import NOTHING, Answer, History, Rule, Seen, Violation, judge, see

TOPIC, QUEUE, HALF, PARKED = "orders", 1, "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"


def _seen(key: str, queue_offset: int, commitlog_offset: int, topic: str = TOPIC, **changes: Any) -> Seen:
    one = Seen(topic, QUEUE if topic == TOPIC else 0, queue_offset, commitlog_offset, key, key.encode())
    return one._replace(**changes)


class Story:
    """Three messages of one producer, one of unknown outcome, one that was refused, one delayed, and three transactions."""

    def __init__(self) -> None:
        self.history = history = History()
        self.log_minimum = 0
        self.seen: list[Seen] = []
        for number in range(3):
            key = f"m{number}"
            sent = history.ask(key, TOPIC, QUEUE, key.encode(), "p")
            history.acknowledge(sent, number, 100 * number)
            self.seen.append(_seen(key, number, 100 * number))
        history.ask("unknown", TOPIC, None, b"unknown", "p")
        history.refuse(history.ask("refused", TOPIC, QUEUE, b"refused", "p"))
        late = history.ask("late", TOPIC, QUEUE, b"late", is_delayed=True)
        history.acknowledge(late, 0, 300)
        self.seen.append(_seen("late", 0, 300, PARKED))
        for number, key in enumerate(("prepared", "committed", "rolled back")):
            half = history.ask(key, TOPIC, QUEUE, key.encode(), transaction="prepared")
            history.acknowledge(half, number, 400 + 100 * number)
            self.seen.append(_seen(key, number, 400 + 100 * number, HALF))
            if key != "prepared":
                history.end(half, key)
                history.ended(half)
        self.seen.append(_seen("committed", 3, 800))
        history.consume(self.seen[:1])

    def judged(self) -> list[Violation]:
        return judge(self.history, self.seen, log_minimum=self.log_minimum)

    def lose(self, key: str, topic: str = TOPIC) -> None:
        self.seen = [one for one in self.seen if (one.key, one.topic) != (key, topic)]

    def change(self, key: str, **changes: Any) -> None:
        self.seen = [one._replace(**changes) if (one.key, one.topic) == (key, TOPIC) else one for one in self.seen]

    def add(self, *ones: Seen) -> None:
        self.seen.extend(ones)


def _swap(story: Story) -> None:
    for sent in story.history.sent[:3]:
        sent.queue_offset = sent.commitlog_offset = None
    story.change("m1", queue_offset=2)
    story.change("m2", queue_offset=1)


def _lose_last(story: Story) -> None:
    story.lose("committed")
    story.history.sent[-2].transaction = "rolled back"
    story.lose("m2")


FAULTS: dict[str, tuple[Rule, Callable[[Story], object]]] = {
    "an acknowledged message is gone": (Rule.LOST, _lose_last),
    "a half message is gone": (Rule.LOST, lambda story: story.lose("prepared", HALF)),
    "a delayed message is gone": (Rule.LOST, lambda story: story.lose("late", PARKED)),
    "a delivered message is not there": (Rule.LOST, lambda story: story.history.ended(story.history.sent[5])),
    "two messages at one offset": (Rule.DUPLICATED, lambda story: story.add(_seen("unknown", 2, 900))),
    "one record at two offsets": (Rule.DUPLICATED, lambda story: story.add(_seen("m2", 4, 200))),
    "a message twice": (Rule.DUPLICATED, lambda story: story.add(_seen("m2", 4, 900))),
    "an unknown one twice": (
        Rule.DUPLICATED,
        lambda story: story.add(_seen("unknown", 4, 900), _seen("unknown", 5, 950)),
    ),
    "a delayed message delivered twice": (
        Rule.DUPLICATED,
        lambda story: story.add(_seen("late", 4, 900), _seen("late", 5, 950)),
    ),
    "committed once and there twice": (Rule.DUPLICATED, lambda story: story.add(_seen("committed", 4, 900))),
    "a consumed message is gone": (Rule.PHANTOM, lambda story: story.history.consume([_seen("gone", 4, 900)])),
    "another one at a consumed offset": (Rule.PHANTOM, lambda story: story.history.consume([_seen("else", 1, 100)])),
    "the same one from another place": (Rule.PHANTOM, lambda story: story.history.consume([_seen("m1", 1, 150)])),
    "what nobody sent": (Rule.PHANTOM, lambda story: story.add(_seen("whose", 4, 900))),
    "what was refused": (Rule.PHANTOM, lambda story: story.add(_seen("refused", 4, 900))),
    "nothing served at an offset": (
        Rule.HOLE,
        lambda story: story.add(Seen(TOPIC, QUEUE, 4, NOTHING, "", b""), _seen("unknown", 5, 900)),
    ),
    "an offset left out": (Rule.HOLE, lambda story: story.add(_seen("unknown", 5, 900))),
    "an end at which nothing is served": (Rule.HOLE, lambda story: story.add(Seen(TOPIC, QUEUE, 4, NOTHING, "", b""))),
    "a queue that begins late": (Rule.HOLE, lambda story: story.add(_seen("x", 3, 900, "bills"))),
    "two that changed places": (Rule.ORDER, _swap),
    "a log that says otherwise": (Rule.POINTER, lambda story: story.change("m1", disagreement="other")),
    "not where the answer said": (Rule.POINTER, lambda story: story.change("m1", commitlog_offset=150)),
    "another body": (Rule.POINTER, lambda story: story.change("m1", body=b"other")),
    "another queue than asked for": (Rule.POINTER, lambda story: story.change("m1", queue_id=0)),
    "a half message in its topic": (Rule.TRANSACTION, lambda story: story.add(_seen("prepared", 4, 900))),
    "a rolled back one in its topic": (Rule.TRANSACTION, lambda story: story.add(_seen("rolled back", 4, 900))),
    "a committed one that is not there": (Rule.TRANSACTION, lambda story: story.lose("committed")),
}


def test_a_sound_history_breaks_no_rule() -> None:
    assert Story().judged() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rule_is_seen(fault: str) -> None:
    rule, breaks = FAULTS[fault]
    story = Story()
    breaks(story)
    assert rule in {violation.rule for violation in story.judged()}


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _ in FAULTS.values()} == set(Rule)


def test_what_an_unknown_outcome_may_mean() -> None:
    """There once, or as often as it was asked for."""
    story = Story()
    story.add(_seen("unknown", 4, 900))
    assert story.judged() == []
    again = story.history.ask("unknown", TOPIC, QUEUE, b"unknown", "p")
    story.history.acknowledge(again, 5, 1000)
    story.add(_seen("unknown", 5, 1000))
    assert story.judged() == []


def test_what_a_retry_may_mean() -> None:
    """What was acknowledged, lost and sent again is lost once, and no duplicate."""
    story = Story()
    again = story.history.ask("m1", TOPIC, QUEUE, b"m1", "p")
    story.history.acknowledge(again, 4, 900)
    story.change("m1", queue_offset=4, commitlog_offset=900)
    rules = [violation.rule for violation in story.judged()]
    assert rules == [Rule.HOLE, Rule.LOST]


def test_what_an_unknown_commit_may_mean() -> None:
    story = Story()
    half = story.history.sent[6]
    assert half.key == "prepared"
    story.history.end(half, "committed")
    assert story.judged() == []
    story.add(_seen("prepared", 4, 900))
    assert story.judged() == []
    story.history.end(half, "rolled back")  # the commit was first
    assert story.judged() == []


def test_what_has_expired_is_not_missed() -> None:
    story = Story()
    story.log_minimum = 250
    story.seen = [one for one in story.seen if one.commitlog_offset >= 250]
    assert story.judged() == []
    story.lose("committed")
    assert [violation.rule for violation in story.judged()] == [Rule.TRANSACTION]


def test_only_what_is_gone_is_a_loss() -> None:
    losses = {
        fault
        for fault, (_, breaks) in FAULTS.items()
        for story in [Story()]
        if breaks(story) or any(violation.is_loss for violation in story.judged())
    }
    assert losses == {
        "an acknowledged message is gone",
        "a half message is gone",
        "a delayed message is gone",
        "a delivered message is not there",
        "a consumed message is gone",
        "another one at a consumed offset",
        "the same one from another place",
        "a committed one that is not there",
    }


def test_lines_hold_all_of_a_history() -> None:
    story = Story()
    lines: list[str] = []
    history = History(lines.append)
    for sent in story.history.sent:
        told = history.ask(sent.key, sent.topic, sent.queue_id, sent.body, sent.producer, is_delayed=sent.is_delayed)
        if sent.answer is Answer.OK:
            history.acknowledge(told, sent.queue_offset, sent.commitlog_offset)
    history.consume(story.seen[:2])
    for source in (history.to_lines(), lines, [*lines, '{"number":3,"se']):
        again = History.from_lines(source)
        assert (again.sent, again.consumed) == (history.sent, history.consumed)
    with pytest.raises(ValueError, match="no JSON"):
        History.from_lines([*lines[:2], "{", *lines[2:]])


# What is read of a store


def _written(root: Path) -> History:
    history = History()
    with open_store(root, config=StoreConfig.tiny(), read_only=False, create=True) as store:
        for number in range(30):
            sent = history.ask(f"k{number}", TOPIC, number % 2, f"body {number}".encode() * (1 + number % 7), "p")
            result = store.put(TOPIC, sent.body, keys=sent.key, queue_id=sent.queue_id, queue_count=2)
            history.acknowledge(sent, result.queue_offset, result.commitlog_offset)
    return history


def _judged(root: Path, history: History) -> list[Violation]:
    with open_store(root, config=StoreConfig.tiny()) as store:
        return judge(history, see(store))


def test_a_store_serves_what_was_put(tmp_path: Path) -> None:
    history = _written(tmp_path / "store")
    assert len(history.sent) == 30
    assert _judged(tmp_path / "store", history) == []
    with open_store(tmp_path / "store", config=StoreConfig.tiny()) as store:
        seen = see(store)
    assert [(one.queue_id, one.queue_offset) for one in seen] == [(queue, at) for queue in (0, 1) for at in range(15)]


def _entry(root: Path, queue_offset: int) -> tuple[Path, bytearray]:
    path = root / "consumequeue" / TOPIC / "0" / "00000000000000000000"
    content = bytearray(path.read_bytes())
    assert struct.unpack_from(">qiq", content, 20 * queue_offset)[1] > 0
    return path, content


def test_an_entry_that_points_at_another_message_is_seen(tmp_path: Path) -> None:
    """At one of the same queue, which the record's size, topic and queue do not tell from the right one."""
    root = tmp_path / "store"
    history = _written(root)
    path, content = _entry(root, 3)
    content[60:80] = content[80:100]
    path.write_bytes(content)
    assert {Rule.POINTER, Rule.LOST} <= {violation.rule for violation in _judged(root, history)}


def test_an_entry_that_points_at_nothing_is_a_hole(tmp_path: Path) -> None:
    root = tmp_path / "store"
    history = _written(root)
    path, content = _entry(root, 3)
    struct.pack_into(">q", content, 60, 17)
    path.write_bytes(content)
    assert {Rule.HOLE, Rule.LOST} == {violation.rule for violation in _judged(root, history)}
