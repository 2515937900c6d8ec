"""Opening what a command reads: the stores at PATH, or the cluster that --name-server names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from spark_mq.cli.app import UsageError, open_cluster
from spark_mq.cli.connection import Connection
from spark_mq.cli.live_place import LivePlace
from spark_mq.cli.places import Place
from spark_mq.cli.store_place import StorePlace

ReadPath = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH",
        show_default=False,
        help="A broker's store, or a directory of stores; in its place --name-server.",
    ),
]


@contextmanager
def open_place(path: str | None, conf: str | None, connection: Connection, *, java: bool = False) -> Iterator[Place]:
    """Exactly one of the two, open for reading. Raises BadParameter for both and for none."""
    place: Place
    if connection.is_chosen(path):
        if conf is not None:
            raise UsageError("--conf is the configuration of stores: leave it away with --name-server")
        if java:
            raise UsageError("--java tells what stands in a store's files: give PATH, not --name-server")
        place = LivePlace(connection.settings())
    else:
        place = StorePlace(open_cluster(path or "", conf), java=java)
    try:
        yield place
    finally:
        place.close()
