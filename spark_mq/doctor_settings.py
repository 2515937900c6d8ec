"""What `spark-mq doctor` says of a broker.conf: what keeps a store from being read or written, and what takes no effect here."""

from __future__ import annotations

from collections.abc import Iterator

from spark_mq.doctor import Finding, Severity
from storage.settings.load import StoreConfig, refuse_for_reading, refuse_for_writing
from storage.settings.unread import OF_A_BROKERS_PROCESS, unread_settings


def check_settings(config: StoreConfig) -> Iterator[Finding]:
    """Findings about the settings that were read; nothing where no file was.

    Values are not shown: one may be a password.
    """
    where = config.file or ""
    for_reading = refuse_for_reading(config)
    for reason in for_reading:
        yield Finding(Severity.ERROR, f"the store can be neither read nor written: {reason}", where, "none yet")
    for reason in refuse_for_writing(config):
        if reason not in for_reading:
            yield Finding(Severity.WARNING, f"the store cannot be written: {reason}", where, "let its broker write")
    for text in config.warnings:
        yield Finding(Severity.WARNING, text, where, "correct the line")
    for name in unread_settings(config.settings):
        if name in OF_A_BROKERS_PROCESS:
            what, cure = "says where a broker's process is; spark_mq starts none", "nothing to do"
        else:
            what, cure = "takes no effect: a broker follows it, spark_mq does not", "do not rely on it here"
        yield Finding(Severity.NOTE, f"{name} {what}", where, cure)
