"""The command broker: a broker, in place of Apache's mqbroker."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.settings import IMPORTANT, Configuration, read_configuration
from spark_mq.broker_server.supervised import SupervisedBroker
from spark_mq.cli.app import app
from spark_mq.cli.processes import PrintsAll, PrintsImportant, PrintsWatermarks, Shown, file_content, serve


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def broker(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="A broker.conf, as mqbroker takes it.")
    ] = None,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Name servers: host:port;host:port.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write what happens to stderr.")] = False,
    prints_watermarks: PrintsWatermarks = False,
) -> None:
    """Run a broker: producers and consumers of RocketMQ's remoting protocol are its clients.

    Its store lies at storePathRootDir (~/store), and is made where there is none. It listens on 127.0.0.1:10911 unless the file says
    otherwise (bindAddress, listenPort; brokerIP1 is the address that clients are told). SIGTERM and Ctrl-C end it.
    """
    configuration = _configuration(config_file, {} if name_servers is None else {"namesrvAddr": name_servers})
    if Shown(prints_all, prints_important).tell(configuration.texts(), IMPORTANT, configuration.store.warnings):
        return
    addresses = ";".join(configuration.process.addresses)
    if configuration.controllers is not None:
        serve(
            partial(ControlledBroker.start, configuration),
            lambda running: _controlled(running, addresses, configuration.process.controllers),
            verbose=verbose,
            watermarks=prints_watermarks,
        )
        return
    start = partial(SupervisedBroker.start, configuration)
    serve(start, lambda running: _words(running, addresses), verbose=verbose, watermarks=prints_watermarks)


def _configuration(config_file: str | None, told: dict[str, str]) -> Configuration:
    if config_file is None:
        return read_configuration(b"", None, told)
    content = file_content(config_file, "name a broker.conf, as mqbroker -c takes it")
    return read_configuration(content, os.path.abspath(config_file), told)


def _controlled(running: ControlledBroker, name_servers: str, controllers: str) -> str:
    told = f" and name server is {name_servers}" if name_servers else ""
    return (
        f"The broker[{running.name}, {running.address}] boot success{told}. "
        f"It takes requests as soon as a controller of {controllers} says whether it is master"
    )


def _words(running: SupervisedBroker, name_servers: str) -> str:
    told = f" and name server is {name_servers}" if name_servers else ""
    missing = () if running.running is None else running.running.unknown_to
    yet = f"; not yet known to {';'.join(missing)}: it is tried again" if missing else ""
    return f"The broker[{running.name}, {running.address}] boot success. serializeType=JSON{told}{yet}"
