"""The journal: what was decided stands there, whole or not at all, whatever happens to process, disk and power."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path
from random import Random

import pytest

from spark_mq.controller.journal import FILE_NAME, encode_record, open_journal, read_records
from spark_mq.controller.state import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ControllerState,
    ElectMaster,
    Event,
    UpdateBrokerAddress,
    decode_event,
    encode_event,
)
from spark_mq.remoting import BodyError
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from tests.support.crash_disk import EXTREMES
from tests.support.crash_file_system import CrashFileSystem
from tests.support.failing_file_system import SHORT, FailingFileSystem, Fault, Step
from tests.support.unsynced_files import UnsyncedFileSystem

LIFE: tuple[tuple[Event, ...], ...] = (
    (
        ApplyBrokerId(
            cluster_name="C", broker_name="b", broker_address="h:1", new_broker_id=1, register_check_code="h:1;1"
        ),
    ),
    (ElectMaster(broker_name="b", new_master_elected=True, new_master_broker_id=1),),
    (
        ApplyBrokerId(
            cluster_name="C", broker_name="b", broker_address="é:2", new_broker_id=2, register_check_code="é:2;1"
        ),
    ),
    (AlterSyncStateSet(broker_name="b", new_sync_state_set=(1, 2)),),
    (UpdateBrokerAddress(cluster_name="C", broker_name="b", broker_address="h:9", broker_id=1),),
    (ElectMaster(broker_name="b", new_master_elected=False), CleanBrokerData(broker_name="b", broker_ids=(1,))),
)
"""The decisions of a short life."""


def states() -> list[ControllerState]:
    """What is known after none, one, two … of them."""
    state, found = ControllerState(), [ControllerState()]
    for events in LIFE:
        for event in events:
            state.apply(event)
        found.append(ControllerState(dict(state.groups), state.replica_count))
    return found


def live(directory: str, files: LocalFileSystem | None = None, rewritten_at_bytes: int = 1 << 20) -> int:
    """The life, written down; how many decisions were kept when it ended or a write failed."""
    journal = open_journal(directory, files, rewritten_at_bytes=rewritten_at_bytes)
    begun = states().index(journal.state)
    for count, events in enumerate(LIFE[begun:], begun):
        try:
            journal.append(events)
        except OSError:
            return count
        for event in events:
            journal.state.apply(event)
    return len(LIFE)


def test_a_journal_that_is_opened_again_says_the_same(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert open_journal(directory).state == ControllerState()
    assert live(directory) == len(LIFE)
    again = open_journal(directory)
    assert again.state == states()[-1]
    again.append(LIFE[0])
    assert (tmp_path / FILE_NAME).stat().st_size == again.size_bytes


def test_a_torn_end_is_cut_wherever_it_tears(tmp_path: Path) -> None:
    live(str(tmp_path))
    whole = (tmp_path / FILE_NAME).read_bytes()
    ends = [record.end for record in read_records(whole).records]
    assert len(ends) == len(LIFE) + 1
    known = states()
    tails = (b"", bytes(7), b"SMQC\x00\x00\x00\x05junk")
    for length in range(ends[0], len(whole)):
        (tmp_path / FILE_NAME).write_bytes(whole[:length] + tails[length % 3])
        kept = sum(end <= length for end in ends) - 1
        assert open_journal(str(tmp_path), UnsyncedFileSystem()).state == known[kept], length
        assert (tmp_path / FILE_NAME).read_bytes() == whole[: ends[kept]]


def test_what_is_damaged_before_the_end_is_not_opened_and_not_changed(tmp_path: Path) -> None:
    live(str(tmp_path))
    whole = (tmp_path / FILE_NAME).read_bytes()
    last = read_records(whole).records[-2].end
    for position in range(0, last, 3):
        spoilt = whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :]
        (tmp_path / FILE_NAME).write_bytes(spoilt)
        with pytest.raises(StateFileError, match="damaged"):
            open_journal(str(tmp_path))
        assert (tmp_path / FILE_NAME).read_bytes() == spoilt


def test_a_good_record_that_says_what_is_not_known_here_is_not_cut(tmp_path: Path) -> None:
    live(str(tmp_path))
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    sequence = read_records(whole).records[-1].sequence
    later = encode_record(sequence + 1, LIFE[0])
    spoken = later.replace(b"\x00\x02{", b"\x00\x63{")
    crc = encode_record_with(spoken)
    path.write_bytes(whole + crc)
    with pytest.raises(StateFileError, match="damaged"):
        open_journal(str(tmp_path))


def encode_record_with(record: bytes) -> bytes:
    """The record with the checksum that its bytes have."""
    return record[:8] + zlib.crc32(record[12:]).to_bytes(4) + record[12:]


@pytest.mark.parametrize("content", [b"", b"SMQC", b"\x00" * 100, b"{}"])
def test_what_is_no_journal_is_not_opened(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StateFileError, match="no journal, or damaged"):
        open_journal(str(tmp_path))


def test_a_journal_that_has_grown_is_written_anew(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert live(directory, rewritten_at_bytes=300) == len(LIFE)
    assert open_journal(directory).state == states()[-1]
    journal = open_journal(directory, rewritten_at_bytes=1_000)
    for number in range(200):
        events = (UpdateBrokerAddress(cluster_name="C", broker_name="b", broker_address=f"h:{number}", broker_id=2),)
        journal.append(events)
        journal.state.apply(events[0])
        assert journal.size_bytes == (tmp_path / FILE_NAME).stat().st_size < 1_600
    again = open_journal(directory)
    assert again.state == journal.state
    assert again.state.groups["b"].address(2) == "h:199"


@pytest.mark.parametrize("rewritten_at_bytes", [1 << 20, 300])
def test_power_goes_at_any_moment(tmp_path: Path, rewritten_at_bytes: int) -> None:
    """What was kept is there afterwards, and at most what was being written besides; and it stays after a second loss."""
    root = tmp_path / "disk"
    root.mkdir()
    files = CrashFileSystem(str(root))
    journal = open_journal(files.root, files, rewritten_at_bytes=rewritten_at_bytes)
    for number, events in enumerate(LIFE, 1):
        journal.append(events)
        files.mark(str(number))
        for event in events:
            journal.state.apply(event)
    known = states()
    seen = set()
    for moment, marks, disk in files.states():
        kept = len(marks)
        for seed, extreme in enumerate(("", "", *EXTREMES)):
            left = CrashFileSystem(str(root), disk.after_power_loss(Random(f"{moment} {seed}"), extreme), 2)
            found = open_journal(str(root), left).state
            assert found in known[kept : kept + 2], (moment, extreme)
            seen.add(known.index(found) - kept)
            again = CrashFileSystem(str(root), left.disk.after_power_loss(Random(seed), "lost"), 3)
            assert open_journal(str(root), again).state == found, "what was found is acted on: it must stay"
    assert seen == {0, 1}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT])
@pytest.mark.parametrize("rewritten_at_bytes", [1 << 20, 300])
def test_any_write_or_sync_may_fail(tmp_path: Path, error: int, rewritten_at_bytes: int) -> None:
    """Nothing is answered that is not there afterwards, and after a failure nothing is written any more."""
    known, number, is_met = states(), 0, True
    steps = frozenset({Step.WRITE} if error == SHORT else {Step.WRITE, Step.SYNC, Step.RENAME, Step.SYNC_DIRECTORY})
    while is_met:
        number += 1
        root = tmp_path / str(number)
        root.mkdir()
        open_journal(str(root))
        files = FailingFileSystem(str(root), Fault(steps, error, number), seed=number)
        try:
            kept = live(str(root), files, rewritten_at_bytes)
        except OSError:
            kept = 0
        is_met = bool(files.met)
        files.take_away()
        left = CrashFileSystem(str(root), files.disk.after_power_loss(Random(number)), 2)
        found = known.index(open_journal(str(root), left).state)
        assert found in (kept, kept + 1), (number, files.met)
        assert live(str(root), left) == len(LIFE)
    assert number > 6


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT])
@pytest.mark.parametrize(("failures", "rewritten_at_bytes"), [(1, 1 << 20), (1, 400), (5, 400)])
def test_decisions_go_on_when_the_disk_does(tmp_path: Path, error: int, failures: int, rewritten_at_bytes: int) -> None:
    """What failed holds for nobody, also where its bytes stand there; what is decided later outlives a loss of power."""
    steps = frozenset({Step.WRITE} if error == SHORT else {Step.WRITE, Step.SYNC, Step.RENAME, Step.SYNC_DIRECTORY})
    number, is_met = 0, True
    while is_met:
        number += 1
        root = tmp_path / str(number)
        root.mkdir()
        open_journal(str(root)).append(LIFE[0])
        files = FailingFileSystem(str(root), seed=number)
        journal = open_journal(str(root), files, rewritten_at_bytes=rewritten_at_bytes)
        files.fault, files.counted = Fault(steps, error, number, for_good=True), 0
        for count in range(7 + failures):
            if len(files.met) >= failures:
                files.take_away()
            address = f"{'long' * 20 * (count % 3 == 1)}h:{count}"  # one that makes it be rewritten, and then one that would not
            events = (UpdateBrokerAddress(cluster_name="C", broker_name="b", broker_address=address, broker_id=1),)
            try:
                journal.append(events)
            except OSError:
                continue
            journal.state.apply(events[0])
            if len(files.met) >= failures:
                break
        is_met = bool(files.met)
        files.take_away()
        left = CrashFileSystem(str(root), files.disk.after_power_loss(Random(number)), 2)
        assert open_journal(str(root), left).state == journal.state, (number, files.met)


def test_of_a_failure_two_lines_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FailingFileSystem(str(tmp_path))
    journal = open_journal(str(tmp_path), files)
    files.fault, files.counted = Fault(frozenset({Step.SYNC}), errno.EIO, 1, for_good=True), 0
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            journal.append(LIFE[0])
    files.take_away()
    journal.append(LIFE[0])
    said = [record.getMessage().removeprefix(journal.path) for record in caplog.records]
    assert said[0].startswith(" takes no decision until its disk does (")
    assert said[1:] == [" takes decisions again"]


APACHES = (
    b'\x00\x02{"brokerAddress":"127.0.0.1:1","brokerName":"b","clusterName":"C","eventType":"APPLY_BROKER_ID_EVENT","newBrokerId":1,'
    b'"registerCheckCode":"127.0.0.1:1;1"}',
    b'\x00\x03{"brokerName":"b","eventType":"ELECT_MASTER_EVENT","newMasterBrokerId":1,"newMasterElected":true}',
    b'\x00\x01{"brokerName":"b","eventType":"ALTER_SYNC_STATE_SET_EVENT","newSyncStateSet":[1,2]}',
    b'\x00\x06{"brokerAddress":"\xc3\xa9\\"\\u003C\\u0028x\\u0029\\u003E:9","brokerId":2,"brokerName":"b","clusterName":"C",'
    b'"eventType":"UPDATE_BROKER_ADDRESS"}',
    b'\x00\x05{"brokerIdSetToClean":[2,3,9],"brokerName":"b","eventType":"CLEAN_BROKER_DATA_EVENT"}',
    b'\x00\x05{"brokerName":"b","eventType":"CLEAN_BROKER_DATA_EVENT"}',
)
"""Entries that a controller of 5.3.3 wrote into its DLedger log."""


@pytest.mark.parametrize("written", APACHES)
def test_events_are_apaches_byte_by_byte(written: bytes) -> None:
    assert encode_event(decode_event(written)) == written


def test_events_are_read_as_they_are_written_and_those_of_earlier_journals_too() -> None:
    """The type in two bytes, then the fields as JSON."""
    assert decode_event(b'\x00\x03{"brokerName":"b","newMasterElected":false}') == LIFE[5][0]
    whole = states()[4].whole()
    for event in (*(event for events in LIFE for event in events), whole):
        assert decode_event(encode_event(event)) == event
    state = ControllerState()
    state.apply(whole)
    assert state == states()[4]
    for content in (b"", b"\x00", b"\x00\x04{}", b"\x00\x01{}", b"\x00\x01", b"\x00\x01[]"):
        with pytest.raises(BodyError):
            decode_event(content)


def test_no_journal_is_begun_on_an_empty_mount_point(tmp_path: Path) -> None:
    """What was decided there would be forgotten when the disk is back, and decided again otherwise."""
    home = tmp_path / "home"
    home.mkdir()
    journal = open_journal(str(home))
    journal.append(LIFE[0])
    home.rename(tmp_path / "unmounted")
    home.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match=r"No such file|is not the directory"):
            journal.append(LIFE[1])
    assert list(home.iterdir()) == []
    home.rmdir()
    (tmp_path / "unmounted").rename(home)
    for events in LIFE[:2]:
        for event in events:
            journal.state.apply(event)
        journal.append(events)
    assert open_journal(str(home)).state == journal.state
