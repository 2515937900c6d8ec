"""The command controller: elects masters, in place of Apache's mqcontroller."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.app import app
from spark_mq.cli.processes import PrintsAll, PrintsImportant, Shown, configuration_from, serve
from spark_mq.controller.server import RunningController
from spark_mq.controller.settings import IMPORTANT, Configuration
from storage.names import address_text


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def controller(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="Settings, as mqcontroller takes them.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write what happens to stderr.")] = False,
) -> None:
    """Run a controller: brokers in controller mode register there, and it elects their masters.

    It is a single node. It listens on 127.0.0.1:9877 unless the file says otherwise (bindAddress, controllerDLegerPeers), and keeps its
    decisions in ~/DledgerController (controllerStorePath). SIGTERM and Ctrl-C end it.
    """
    configuration = configuration_from(config_file, "mqcontroller", Configuration.of, Configuration.read)
    if Shown(prints_all, prints_important).tell(configuration.texts(), IMPORTANT, configuration.warnings):
        return
    serve(lambda: RunningController.start(configuration), _words, verbose=verbose)


def _words(running: RunningController) -> str:
    return f"The Controller Server boot success. serializeType=JSON, address {address_text(*running.address)}"
