"""The soak for twenty seconds, and what its figures are made of. For twenty minutes: `make soak`."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker_server.bad_proxy import bad_proxy
from tests.broker_server.process_samples import Sample, slope_per_minute
from tests.broker_server.soak import BEGIN, COLUMNS, END, FLUSHES, Soaked, soak, table, with_row
from tests.remoting_server.echo import request
from tests.support.planned_server import echo, frame, planned_server
from tests.torture.page import write_into


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.long
def test_nothing_that_was_acknowledged_is_lost(flush: str, tmp_path: Path) -> None:
    soaked = soak(flush, 20, 4711, tmp_path, print)
    print(table([soaked.row()]), soaked.failures)
    assert (soaked.lost, soaked.not_consumed, soaked.wrong) == ([], [], [])
    assert soaked.acknowledged > 100
    assert soaked.kills >= 1
    assert soaked.joins >= 3


def _life(begin_s: float, level: int, per_minute: float, seconds: int = 100) -> list[Sample]:
    return [Sample(begin_s + at, 0, level + round(per_minute * at / 60), 7, 3) for at in range(seconds)]


def test_a_slope_is_one_for_all_lives_whatever_their_levels() -> None:
    lives = [_life(0, 1_000_000, 6_000), _life(500, 3_000_000, 6_000), _life(900, 5, 6_000, 1)]
    assert slope_per_minute(lives, lambda sample: sample.own_bytes) == pytest.approx(6_000, rel=0.01)
    assert slope_per_minute(lives, lambda sample: sample.descriptors) == 0
    assert slope_per_minute([_life(0, 0, 1, 2)], lambda sample: sample.own_bytes) is None


def test_the_beginning_of_a_life_does_not_count() -> None:
    life = _life(0, 0, 600_000, 120) + _life(120, 1_200_000, 0, 200)
    assert slope_per_minute([life], lambda sample: sample.own_bytes) == pytest.approx(0, abs=1)


def test_a_row_takes_the_place_of_the_one_of_its_flush(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    for flush, seed in (("ASYNC_FLUSH", 1), ("SYNC_FLUSH", 2), ("ASYNC_FLUSH", 3)):
        row = Soaked(flush, seed, 60).row()
        assert row.count("|") == len(COLUMNS) + 1
        write_into(page, table(with_row(page.read_text(), row)), BEGIN, END)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert [line.split(" | ")[:2] for line in lines if "_FLUSH |" in line] == [
        ["| SYNC_FLUSH", "2"],
        ["| ASYNC_FLUSH", "3"],
    ]


def test_a_run_is_sound_only_if_something_was_acknowledged_and_nothing_is_lost() -> None:
    assert not Soaked("SYNC_FLUSH", 1, 60).is_sound
    assert Soaked("SYNC_FLUSH", 1, 60, acknowledged=1).is_sound
    for what in ("lost", "not_consumed", "wrong"):
        assert not Soaked("SYNC_FLUSH", 1, 60, acknowledged=1, **{what: ["0-1"]}).is_sound


def test_a_long_last_life_whose_memory_or_connections_rise_is_not_flat() -> None:
    risen = _life(0, 0, 2 << 20, 600)
    assert not Soaked("SYNC_FLUSH", 1, 60, lives=[risen]).is_flat
    assert Soaked("SYNC_FLUSH", 1, 60, lives=[risen, _life(600, 9 << 20, 0, 600)]).is_flat
    assert Soaked("SYNC_FLUSH", 1, 60, lives=[risen[:300]]).is_flat, "it says nothing yet"
    connected = [sample._replace(descriptors=7 + at // 20) for at, sample in enumerate(_life(0, 0, 0, 600))]
    assert not Soaked("SYNC_FLUSH", 1, 60, lives=[connected]).is_flat
    written = [
        sample._replace(mapped_bytes=at << 20, open_files=3 + at, descriptors=9 + at) for at, sample in enumerate(risen)
    ]
    assert Soaked("SYNC_FLUSH", 1, 60, lives=[[each._replace(own_bytes=0) for each in written]]).is_flat


@pytest.mark.slow
def test_a_rough_proxy_does_each_of_its_misdeeds_and_a_calm_one_none() -> None:
    """Otherwise the soak would show nothing."""
    with planned_server(echo) as server, bad_proxy(1, 0.01, [("127.0.0.1:0", server.address)]) as proxy:
        address = proxy.addresses[0]
        assert _is_served(address)
        proxy.tell("rough")
        while any(proxy.counts()[misdeed] < 2 for misdeed in ("delay", "bytes", "cut", "freeze")):
            _is_served(address)
        proxy.tell("calm")
        assert all(_is_served(address) for _ in range(20))


def _is_served(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with closing(socket.create_connection((host, int(port)), 1)) as sock:
        sock.settimeout(1)
        try:
            for number in range(20):
                sock.sendall(frame(request(number)))
                if not sock.recv(1 << 16):
                    return False
        except OSError:
            return False
    return True
