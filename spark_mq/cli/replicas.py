"""The commands replicate, follow and promote: a store's log on other machines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from spark_mq.broker_server.masters import MasterByName
from spark_mq.broker_server.opening import tell
from spark_mq.broker_server.state_copies import copies_of
from spark_mq.cli.processes import Verbose, serve
from spark_mq.cli.stores import OneStorePath, one_store
from spark_mq.client.settings import ClientSettings
from spark_mq.command_options import Conf
from spark_mq.hand_over.local_socket import Copies, ReplicaServer
from spark_mq.terminal import CommandError, UsageError
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import SlaveHandshake
from storage.ha.follower import MasterAsks, open_following
from storage.ha.follower import promote as forget_master
from storage.ha.listener import ListenerSettings, Replicator
from storage.ha.sessions import Timing
from storage.names import address_text, split_address
from storage.service.put_group import ReplicaAcks
from storage.settings.load import StoreConfig, load_config

DEFAULT_HA_PORT = 10_912
_LOG = logging.getLogger(__name__)


class _Running:
    """A process whose closing waits, and the line that says that it runs; `failure` says why it does nothing more."""

    def __init__(
        self, close: Callable[[], None], words: str, failure: Callable[[], Exception | None] = lambda: None
    ) -> None:
        self._close = close
        self.words = words
        self.failure = failure

    async def close(self) -> None:
        await asyncio.to_thread(self._close)


def replicate(
    path: OneStorePath,
    conf: Conf = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.")] = DEFAULT_HA_PORT,
    verbose: Verbose = False,
) -> None:
    """Serve a store's log to slaves.

    It runs beside the store's writer, a Spark sink for example. Slaves are Apache's brokers or spark-mq follow. It writes no message
    and takes no lock. Sinks with `inSyncReplicas` ask it how many copies there are. A `spark-mq broker` does all this itself.
    """
    root = one_store(path)

    def started() -> _Running:
        store = open_store(root, config=conf)
        settings = store.config.replication
        timing = Timing(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval)
        listening = ListenerSettings(host, port, timing=timing, batch_bytes=settings.ha_transfer_batch_size)
        try:
            replicator = Replicator(store, listening)
        except OSError as error:
            store.close()
            reason = f"cannot listen on {address_text(host, port)}: {error.strerror or error}"
            raise CommandError(reason, "another process may listen there: --port says where") from None
        answering = _answering_sinks(root, store.config, replicator)
        replicator.start()

        def close() -> None:
            if answering is not None:
                answering.close()
            replicator.close()

        return _Running(close, f"{root} is served at {replicator.listener.address}")

    _serve(started, verbose=verbose)


def _answering_sinks(root: str, config: StoreConfig, replicator: Replicator) -> ReplicaServer | None:
    """Answers sinks how many copies there are. If no socket can be made, a warning says so, and slaves are served all the same."""
    acks = ReplicaAcks(config.mode, config.replication)
    replicator.listener.replicas.listen(partial(tell, acks))
    copies = Copies(
        lambda needed, seconds: acks.in_sync_within(replicator.log_end, needed, seconds), acks.holding_within
    )
    try:
        server = ReplicaServer(root, copies)
    except OSError as error:
        _LOG.warning("sinks that ask for copies of %s are not answered: %s", root, error)
        return None
    server.start()
    return server


def follow(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            show_default=False,
            help="The master's haListenPort, host:port; with --broker-name the name servers, host:port;host:port.",
        ),
    ],
    path: Annotated[
        str, typer.Argument(metavar="PATH", show_default=False, help="The replica: a store, or nothing yet.")
    ],
    broker_name: Annotated[
        str | None,
        typer.Option(
            "--broker-name", metavar="NAME", help="Follow this broker's master, and copy its state files too."
        ),
    ] = None,
    learner: Annotated[
        int | None,
        typer.Option(
            "--learner", metavar="ID", help="The master is a controller's: follow it as a learner with this broker id."
        ),
    ] = None,
    conf: Conf = None,
    adopt: Annotated[bool, typer.Option("--adopt", help="PATH is a copy of the master's store.")] = False,
    verbose: Verbose = False,
) -> None:
    """Keep a replica of a master's log.

    The replica, with queues and index, is at PATH. The master is an Apache broker, a spark-mq broker or spark-mq replicate; both need
    the same mappedFileSizeCommitLog. Meanwhile PATH can be read as any store, and no other process may write there until spark-mq
    promote. If its disk fails the command ends with exit code 1: start it again then.
    """
    if broker_name is None:
        try:
            split_address(address)
        except ValueError as rule:
            raise UsageError(f"{address} is no address: {rule}", "give host:port, for example 10.0.0.7:10912") from None
    config = load_config(path, conf, read_bytes=LocalFileSystem().read_file)
    settings = config.replication
    timing = Timing(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval)

    identity = None if learner is None else SlaveHandshake(learner, is_learner=True)

    def started() -> _Running:
        if broker_name is None:
            following = open_following(path, address, config=config, timing=timing, adopts=adopt, identity=identity)
            return _Running(following.close, f"{path} follows {address}", lambda: following.follower.error)
        master = MasterByName(ClientSettings(tuple(address.split(";"))), broker_name)
        following = open_following(
            path,
            master.ha_address,
            config=config,
            timing=timing,
            asks=MasterAsks(master.bounds, master.record, master.topics),
            adopts=adopt,
            identity=identity,
        )
        copies = copies_of(following, master)
        copies.start()

        def close() -> None:
            copies.close()
            following.close()

        return _Running(close, f"{path} follows broker {broker_name} of {address}", lambda: following.follower.error)

    _serve(started, verbose=verbose)


def promote(path: OneStorePath, conf: Conf = None) -> None:
    """Make a replica a store of its own.

    It follows no master any more, and may be written. Stop its follower and its master first.
    """
    root = one_store(path, to_write=True)
    followed = forget_master(root, config=conf)
    typer.echo(f"{root} may be written now" if followed else f"{root} has followed no master")


def _serve(started: Callable[[], _Running], *, verbose: bool) -> None:
    serve(lambda: asyncio.to_thread(started), lambda running: running.words, verbose=verbose, failure_of=_failure)


def _failure(running: _Running) -> CommandError | None:
    error = running.failure()
    hint = (
        "when its disk is well again, start it again: it goes on where it was" if isinstance(error, OSError) else None
    )
    return None if error is None else CommandError(str(error) or type(error).__name__, hint)
