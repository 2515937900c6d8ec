"""A damaged store is refused with a report; repair cuts it and keeps what it cut, so that an operator can look at it or put it back.

Expected is what damage.json says of the byte that was inverted, and what the producers say they sent.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from storage import open_store
from tests.support.commands import run
from tests.support.fixture_stores import Fixture, golden_lines

FixtureStore = Callable[[str], Fixture]


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def damage_of(fixture: Fixture) -> dict[str, Any]:
    assert fixture.damage is not None
    return fixture.damage


def sent(fixture: Fixture) -> dict[str, dict[str, Any]]:
    """What the producers sent, by unique key."""
    assert fixture.sent is not None
    found = (json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines())
    return {line["msgId"]: line for line in found if "msgId" in line}


def body_of(line: dict[str, Any]) -> bytes:
    return b64decode(line["body_base64"]) if "body_base64" in line else str(line["body"]).encode()


def test_damage_is_reported_for_people_and_for_machines_with_the_command_that_helps(
    fixture_store: FixtureStore,
) -> None:
    fixture = fixture_store("damaged")
    before, damage = content(fixture.root), damage_of(fixture)
    position = damage["record"] - int(damage["file"])
    report = json.loads(run("recover", fixture.root, "--json", exit_code=1).splitlines()[0])
    assert report["damage"] == {
        "file": f"{fixture.root}/commitlog/{damage['file']}",
        "position": position,
        "commitlog_offset": damage["record"],
        "field": "body CRC",
        "intact_records_behind": damage["intactRecordsBehindWithinCheckpoint"],
    }
    assert "spark-mq repair" in report["hint"]
    text = run("recover", fixture.root, exit_code=1)
    for part in (
        damage["file"],
        f"byte {position}",
        "body CRC",
        f"{damage['intactRecordsBehindWithinCheckpoint']} intact",
    ):
        assert part in text
    assert "spark-mq repair" in text
    assert content(fixture.root) == before


@pytest.mark.parametrize("command", [["repair"], ["recover", "--policy", "truncate"]])
def test_a_repair_keeps_what_it_cuts(fixture_store: FixtureStore, command: list[str]) -> None:
    fixture = fixture_store("damaged")
    damage = damage_of(fixture)
    report = json.loads(run(*command, fixture.root, "--json"))
    assert (report["log_end"], report["quarantined_records"]) == (damage["record"], damage["intactRecordsBehind"])
    dumped = [json.loads(line) for line in run("dump", fixture.root, "--java", "--all").splitlines()]
    assert dumped == list(golden_lines(fixture.golden, "message"))
    (listed,) = json.loads(run("quarantine", fixture.root, "--json"))
    assert (listed["directory"], listed["intact_records"]) == (report["quarantine"], damage["intactRecordsBehind"])
    assert "body CRC" in listed["reason"]
    lines = [json.loads(line) for line in run("quarantine", fixture.root, listed["name"]).splitlines()]
    assert len(lines) == damage["intactRecordsBehind"]
    ours = sent(fixture)
    known = [
        line for line in lines if line["unique_key"] in ours and line["topic"] == ours[line["unique_key"]]["topic"]
    ]
    assert len(known) > 10
    for line in known:
        message = ours[line["unique_key"]]
        assert sha256(body_of(line)).hexdigest() == message["bodySha256"]
        assert line["properties"].items() >= message["userProperties"].items()
    assert json.loads(run("recover", fixture.root, "--json"))["quarantine"] is None
    assert listed["name"] in run("quarantine", fixture.root)


def test_a_repair_of_a_sound_store_cuts_nothing(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    report = json.loads(run("repair", fixture.root, "--json"))
    assert (report["cut_bytes"], report["quarantine"], report["quarantined_records"]) == (0, None, 0)
    assert json.loads(run("quarantine", fixture.root, "--json")) == []
    assert "nothing was cut" in run("quarantine", fixture.root)


def test_what_was_cut_can_be_put_back(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("damaged")
    name = Path(json.loads(run("repair", fixture.root, "--json"))["quarantine"]).name
    lines = run("quarantine", fixture.root, name, "--topic", "TopicTx")
    cut = [json.loads(line) for line in lines.splitlines()]
    assert cut
    with open_store(fixture.root) as store:
        before = {queue_id: store.max_offset("TopicTx", queue_id) for queue_id in store.queue_ids("TopicTx")}
    run("produce", fixture.root, "--json", lines=lines)
    with open_store(fixture.root) as store:
        back = [
            (message.queue_id, message.tags, message.properties.get("KEYS"), message.plain_body)
            for queue_id, first in before.items()
            for message in store.get("TopicTx", queue_id, first).messages
        ]
    expected = [(line["queue_id"], line["tags"], line["keys"], body_of(line)) for line in cut]
    assert sorted(back, key=repr) == sorted(expected, key=repr)


def test_a_quarantine_that_is_not_there_is_named_with_those_that_are(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("damaged")
    assert "there is none" in run("quarantine", fixture.root, "today", exit_code=1)
    name = Path(json.loads(run("repair", fixture.root, "--json"))["quarantine"]).name
    assert name in run("quarantine", fixture.root, "today", exit_code=1)
    assert len(run("quarantine", fixture.root, name, "--limit", "3").splitlines()) == 3
    shutil.rmtree(fixture.root / "spark_mq/quarantine" / name)
    assert json.loads(run("quarantine", fixture.root, "--json")) == []
