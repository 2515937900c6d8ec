"""Runs of one streaming query that should not be there: frozen ones that wake, copies, strangers with its name; and disks without room.

    python -m tests.torture other-runs [--scene STORY]

Each story is played with a sink into a store and into a broker of ours (exactly once). In the end every row of the source is in the
sink once, whatever the runs that had to fail have said; a story prints one row of a table.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from storage import open_store
from storage.failpoints import LIVE_STAGING, STAGING
from tests.broker_server.own_cluster import own_cluster
from tests.support.driver_process import FAILED, Driver, Query
from tests.support.loop_disk import LoopDisk
from tests.support.served import served
from tests.support.spark_cluster import SPECULATION, TWO_EXECUTORS, TWO_HOSTS
from tests.torture.by_hand import ByHand, Report, Run

TOPIC, QUEUES, ROWS = "Runs", 4, 300
AHEAD = "SPARK_MQ_SINK_AHEAD"
CONCURRENT = (AHEAD, "CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs", "ConcurrentModification")
SINKS = ("path", "live")


@dataclass
class Scene:
    """A source that grows, and a sink: a store of its own, or a running broker's."""

    directory: Path
    sink: Path
    name_server: str | None
    rows: int = 0
    runs: int = 0
    ends: list[str] = field(default_factory=list)

    @property
    def staging_point(self) -> str:
        return (LIVE_STAGING if self.name_server else STAGING)[-1]

    def add_rows(self, count: int = ROWS) -> None:
        names = range(self.rows, self.rows + count)
        self.rows += count
        table = pa.table({"body": [b"%d" % name for name in names], "queue_id": [name % QUEUES for name in names]})
        with open_store(self.directory / "source", read_only=False, create=True) as store:
            store.put_batch(table, topic=TOPIC, queue_count=QUEUES)

    def driver(
        self,
        checkpoint: str = "checkpoint",
        *,
        failpoint: str | None = None,
        rows_a_batch: int = ROWS // 2,
        master: str = "local[1]",
        config: dict[str, str] | None = None,
        **options: str,
    ) -> Driver:
        """Of the live sink the staging directory is `staging` in the checkpoint's, where no option says another."""
        self.runs += 1
        place = self.directory / checkpoint
        live = {"nameServer": self.name_server, "guarantee": "exactlyOnce", "stagingPath": str(place / "staging")}
        given = {**(live if self.name_server else {}), **options}
        query = Query(
            str(self.directory / "source"),
            "" if self.name_server else str(self.sink),
            TOPIC,
            str(place / "spark"),
            rows_a_batch,
            master=master,
            config=config or {},
            sink_options={name: value for name, value in given.items() if value is not None},
        )
        return Driver(query, self.directory / f"run-{self.runs}", failpoint=failpoint, paused=failpoint is not None)

    def run(self, checkpoint: str = "checkpoint", *, fails_by: tuple[str, ...] = (), **given: str | int) -> None:
        """One that comes to its end: well, or by one of these errors."""
        with self.driver(checkpoint, **given) as driver:  # type: ignore[arg-type]
            driver.begin()
            self.end(driver, fails_by)

    def end(self, driver: Driver, fails_by: tuple[str, ...] = (), *, may_end_well: bool = False) -> None:
        code = driver.wait_for_end()
        named = next((name for name in fails_by if name in driver.output), None)
        self.ends.append("well" if code == 0 else str(named))
        assert (code == 0 and (not fails_by or may_end_well)) or (code == FAILED and named), driver.output

    def copy(self, checkpoint: str) -> None:
        """Of the checkpoint, with what is staged."""
        shutil.copytree(self.directory / "checkpoint", self.directory / checkpoint)

    def tally(self) -> tuple[int, int]:
        """Rows lost and doubled."""
        found: Counter[bytes] = Counter()
        with open_store(self.sink) as store:
            found.update(message.body for message in served(store, TOPIC))
        return sum(b"%d" % name not in found for name in range(self.rows)), sum(found.values()) - len(found)


def frozen_driver(scene: Scene) -> None:
    """A driver is stopped (SIGSTOP) with its rows staged; two successors run on its checkpoint, then it wakes."""
    scene.add_rows()
    with scene.driver(failpoint=scene.staging_point) as frozen:
        frozen.begin()
        assert frozen.wait() is None, frozen.output
        frozen.freeze()
        scene.run()
        scene.add_rows()
        scene.run()
        frozen.resume()
        frozen.thaw()
        scene.end(frozen, CONCURRENT)
    scene.run()


def copied_checkpoint(scene: Scene) -> None:
    """A copy of the checkpoint, with its staging directory, is started when the original has gone on; it plans larger batches."""
    scene.add_rows()
    scene.run()
    scene.copy("copy")
    scene.add_rows()
    scene.run()
    scene.run("copy", rows_a_batch=ROWS, fails_by=(AHEAD,))
    scene.add_rows()
    scene.run()


def one_sink_id(scene: Scene) -> None:
    """A second query has the first one's sinkId, and the same staging directory."""
    staging = {"stagingPath": str(scene.directory / "staging")} if scene.name_server else {}
    scene.add_rows()
    scene.run(sinkId="orders", **staging)
    scene.run("other", sinkId="orders", fails_by=("SPARK_MQ_SINK_TAKEN", "take another sinkId"), **staging)
    scene.add_rows()
    scene.run(sinkId="orders", **staging)


def killed_executor(scene: Scene) -> None:
    """The executor (a JVM of its own) of a task that has staged is killed."""
    scene.add_rows()
    with scene.driver(failpoint=scene.staging_point, master=TWO_EXECUTORS) as driver:
        driver.begin()
        assert driver.wait() is None, driver.output
        driver.kill_paused_executor()
        scene.end(driver)


def speculated_task(scene: Scene) -> None:
    """A task stands still, and Spark runs it a second time on another host."""
    scene.add_rows()
    with scene.driver(failpoint=scene.staging_point, master=TWO_HOSTS, config=SPECULATION) as driver:
        driver.begin()
        assert driver.wait() is None, driver.output
        scene.end(driver)


def full_disk(scene: Scene) -> None:
    """The disk of the staging directory (live) or of the store is full, and there is room again later."""
    disk = LoopDisk(scene.directory / "loop", 64 << 20)
    with disk:
        staging: dict[str, str] = {}
        if scene.name_server:
            staging = {"stagingPath": str(disk.place / "staging")}
        else:
            scene.sink = disk.place / "store"
        scene.add_rows()
        ballast = disk.fill()
        scene.run(fails_by=("No space left", "no room", "STORE_NOT_WRITABLE"), **staging)
        ballast.unlink()
        scene.run(**staging)
        scene.ends.append(f"lost {scene.tally()[0]}")
        if not scene.name_server:
            shutil.copytree(scene.sink, scene.directory / "kept")
            scene.sink = scene.directory / "kept"


STORIES: dict[str, Callable[[Scene], None]] = {
    story.__name__: story
    for story in (frozen_driver, copied_checkpoint, one_sink_id, killed_executor, speculated_task, full_disk)
}


@contextmanager
def scene_of(kind: str, directory: Path) -> Iterator[Scene]:
    """With a sink into a store ("path") or into a broker ("live")."""
    directory.mkdir()
    if kind == "path":
        yield Scene(directory, directory / "sink", None)
        return
    with own_cluster(directory) as cluster:
        cluster.make_topic(TOPIC, QUEUES)
        yield Scene(directory, cluster.store, cluster.name_server)


def play_story(story: str, kind: str, directory: Path) -> str:
    """A row of the table. Raises AssertionError where a row is lost or doubled."""
    with scene_of(kind, directory) as scene:
        STORIES[story](scene)
        lost, doubled = scene.tally()
    text = f"| {story.replace('_', ' ')} | {kind} | {scene.runs} | {scene.rows} | {lost} | {doubled} | {', '.join(scene.ends)} |"
    assert (lost, doubled) == (0, 0), text
    return text


def play(run: Run) -> Report:
    """Each story, or the one that is named, with both sinks."""
    rows, is_sound = [], True
    for story in (run.scene,) if run.scene else STORIES:
        for kind in SINKS:
            try:
                rows.append(play_story(story, kind, run.directory / f"{story}-{kind}"))
            except AssertionError as error:
                rows.append(f"| {story} | {kind} | FAILED: {str(error)[-3000:]}")
                is_sound = False
            run.tell(rows[-1])
    return Report("\n".join(rows), is_sound)


BY_HAND = ByHand(play, rounds=1, scenes=tuple(STORIES))
