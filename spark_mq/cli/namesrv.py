"""The command namesrv: a name server, in place of Apache's mqnamesrv."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.app import app
from spark_mq.cli.processes import PrintsAll, PrintsImportant, PrintsWatermarks, Shown, configuration_from, serve
from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import IMPORTANT, Configuration
from storage.names import address_text


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def namesrv(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="Settings, as mqnamesrv takes them.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Has no effect, as at mqnamesrv.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write what happens to stderr.")] = False,
    prints_watermarks: PrintsWatermarks = False,
) -> None:
    """Run a name server: brokers register there, clients ask it where topics are.

    It listens on 127.0.0.1:9876 unless the file says otherwise (bindAddress, listenPort), and keeps the operators' texts in
    ~/namesrv/kvConfig.json (kvConfigPath). SIGTERM and Ctrl-C end it.
    """
    configuration = configuration_from(config_file, "mqnamesrv", Configuration.of, Configuration.read)
    if Shown(prints_all, prints_important).tell(configuration.texts(), IMPORTANT, configuration.warnings):
        return
    serve(lambda: RunningNameServer.start(configuration), _words, verbose=verbose, watermarks=prints_watermarks)


def _words(running: RunningNameServer) -> str:
    return f"The Name Server boot success. serializeType=JSON, address {address_text(*running.address)}"
