"""The command broker: a broker, in place of Apache's mqbroker."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import IMPORTANT, Configuration, read_configuration
from spark_mq.cli.app import app
from spark_mq.cli.processes import file_content, serve, tell_settings


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def broker(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="A broker.conf, as mqbroker takes it.")
    ] = None,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Name servers: host:port;host:port.")
    ] = None,
    prints_all: Annotated[bool, typer.Option("-p", "--printConfigItem", help="Print all settings and end.")] = False,
    prints_important: Annotated[
        bool, typer.Option("-m", "--printImportantConfig", help="Print the important settings and end.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write what happens to stderr.")] = False,
) -> None:
    """Run a broker: producers and consumers of RocketMQ's remoting protocol are its clients.

    Its store lies at storePathRootDir (~/store), and is made where there is none. It listens on 127.0.0.1:10911 unless the file says
    otherwise (bindAddress, listenPort; brokerIP1 is the address that clients are told). SIGTERM and Ctrl-C end it.
    """
    configuration = _configuration(config_file, {} if name_servers is None else {"namesrvAddr": name_servers})
    for warning in configuration.store.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if prints_all or prints_important:
        tell_settings(configuration.texts(), None if prints_all else IMPORTANT)
        return
    addresses = ";".join(configuration.process.addresses)
    start = partial(RunningBroker.start, configuration)
    serve(start, lambda running: _words(running, addresses), verbose=verbose)


def _configuration(config_file: str | None, told: dict[str, str]) -> Configuration:
    if config_file is None:
        return read_configuration(b"", None, told)
    content = file_content(config_file, "name a broker.conf, as mqbroker -c takes it")
    return read_configuration(content, os.path.abspath(config_file), told)


def _words(running: RunningBroker, name_servers: str) -> str:
    parts = running.broker.parts
    told = f" and name server is {name_servers}" if name_servers else ""
    return f"The broker[{parts.broker_name}, {parts.address}] boot success. serializeType=JSON{told}"
