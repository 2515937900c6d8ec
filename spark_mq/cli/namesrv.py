"""The command namesrv: a name server, in place of Apache's mqnamesrv."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from spark_mq.cli.app import app
from spark_mq.cli.processes import file_content, serve, tell_settings
from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import IMPORTANT, Configuration, configuration_of, read_configuration

_HOME = "ROCKETMQ_HOME"


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def namesrv(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="Settings, as mqnamesrv takes them.")
    ] = None,
    prints_all: Annotated[bool, typer.Option("-p", "--printConfigItem", help="Print all settings and end.")] = False,
    prints_important: Annotated[
        bool, typer.Option("-m", "--printImportantConfig", help="Print the important settings and end.")
    ] = False,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Has no effect, as at mqnamesrv.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write what happens to stderr.")] = False,
) -> None:
    """Run a name server: brokers register there, clients ask it where topics are.

    It listens on 127.0.0.1:9876 unless the file says otherwise (bindAddress, listenPort), and keeps the operators' texts in
    ~/namesrv/kvConfig.json (kvConfigPath). SIGTERM and Ctrl-C end it.
    """
    configuration = _configuration(config_file)
    for warning in configuration.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if prints_all or prints_important:
        tell_settings(configuration.texts(), None if prints_all else IMPORTANT)
        return
    serve(lambda: RunningNameServer.start(configuration), _words, verbose=verbose)


def _configuration(config_file: str | None) -> Configuration:
    home = {"rocketmqHome": os.environ[_HOME]} if os.environ.get(_HOME) else {}
    if config_file is None:
        return configuration_of(home)
    content = file_content(config_file, "name a properties file, as mqnamesrv -c takes it")
    return read_configuration(content, os.path.abspath(config_file), home)


def _words(running: RunningNameServer) -> str:
    host, port = running.address
    return f"The Name Server boot success. serializeType=JSON, address {host}:{port}"
