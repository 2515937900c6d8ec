"""Settings of a broker.conf that a broker follows and this package reads nowhere.

What is read is a field of a noun in `nouns.py`; a test holds each field against the code that reads it. So all other names that a
broker knows take no effect here. They are told: by `spark-mq doctor`, and in one line of the log of each process that opens the store
for writing or reads it with Spark. Commands that only read a store are silent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields

from storage.settings.java_settings import JAVA_SETTINGS, JavaSetting
from storage.settings.nouns import NOUNS

READ_SETTINGS = frozenset(str(declared.metadata["java"]) for noun in NOUNS for declared in fields(noun))
"""Java's names of the settings that take effect in this package."""
OF_A_BROKERS_PROCESS = frozenset(
    (
        *("namesrvAddr", "bindAddress", "storePathRootDir", "rmqAddressServerDomain"),
        *("brokerId", "haMasterAddress", "controllerAddr"),
    )
)
"""Unread settings that say where a broker's process lies and listens. Every broker.conf has some, so `doctor` alone names them."""

_LOG = logging.getLogger(__name__)
_said: set[tuple[str, tuple[str, ...]]] = set()


def unread_settings(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Of settings by Java name, sorted, those that nothing reads and that say something else than Java's default."""
    return tuple(
        sorted(
            name
            for name, text in settings.items()
            if name in JAVA_SETTINGS and name not in READ_SETTINGS and _differs(JAVA_SETTINGS[name], text)
        )
    )


def _differs(setting: JavaSetting, text: str) -> bool:
    """Whether a text that Java can read means something else than the default; one without a known default always does."""
    if setting.default is None:
        return True
    if setting.type in ("int", "long", "double"):
        return float(text) != float(setting.default)
    if setting.type == "boolean":
        return (text.lower() == "true") != (setting.default == "true")
    return text.strip() != setting.default


def warn_of_unread(file: str | None, settings: Mapping[str, str]) -> None:
    """Say in the log, once a process and file, which settings take no effect; names only, as a value may be a password."""
    names = tuple(name for name in unread_settings(settings) if name not in OF_A_BROKERS_PROCESS)
    if names and (said := (str(file), names)) not in _said:
        _said.add(said)
        _LOG.warning(
            "%s: a broker follows these settings, spark_mq does not, so they take no effect here: %s. "
            "spark-mq doctor --conf FILE says more",
            file or "the configuration",
            ", ".join(names),
        )
