"""The command that says that a store and a log outside of its directory belong together: bind-log."""

from __future__ import annotations

from spark_mq.cli.app import AsJson, CommandError, Conf, LockTimeout, OneStorePath, app, lock_timeout_ms, store_to_write
from spark_mq.cli.output import print_json, say
from spark_mq.terminal import busy
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.log_bind import bind_log
from storage.settings.load import load_config
from storage.tables.surroundings import binding_path


@app.command("bind-log")
def bind(path: OneStorePath, conf: Conf = None, lock_timeout: LockTimeout = "10s", as_json: AsJson = False) -> None:
    """Allow writing to a log outside of the store's directory, which broker.conf names or the link commitlog leads to.

    The broker must be stopped. Queues and checkpoint are compared with the log first, and a log of another store is refused. The
    binding is a file in the store; a copy of the store is not bound.
    """
    timeout_ms = lock_timeout_ms(lock_timeout)
    root, _ = store_to_write(path)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    with busy("comparing"):
        bound = bind_log(root, config, files, lock_timeout_ms=timeout_ms)
    if bound is None:
        raise CommandError(f"the log of {root} lies in its own directory", "such a store needs no binding")
    if as_json:
        print_json({"store": root, "log": list(bound), "binding": binding_path(root)})
    else:
        say(f"{root} is bound to {' and '.join(bound)}")
