"""A running broker's settings: written as Java's properties, and changed by an operator.

A change is written to the broker.conf that the broker was started with, at the setting's line. `FIXED_SETTINGS` cannot be changed.
Settings of sends, pulls, clients, transactions and retention take effect at once. Settings of the open store (file sizes, flushes,
message sizes) take effect at the next start.
Java: Configuration, MixAll.string2Properties, AdminBrokerProcessor.validateBlackListConfigExist.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace

from storage.format.bloom_filter import BloomFilter
from storage.settings.java_properties import changed_properties, escaped_value, parse_properties
from storage.settings.java_settings import JAVA_SETTINGS
from storage.settings.load import StoreConfig, parse_config
from storage.settings.nouns import NOUNS

SECRETS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Settings that no answer contains."""


def settings_text(config: StoreConfig) -> str:
    """Every setting of a broker as `name=value` lines, sorted; nothing secret."""
    values = settings_values(config)
    return "".join(f"{name}={values[name]}\n" for name in sorted(values))


def settings_values(config: StoreConfig) -> dict[str, str]:
    """Every setting of a broker: what is configured, else what this broker goes by or Java's default; nothing secret."""
    followed: dict[str, str] = {}
    for noun in (getattr(config, item.name) for item in fields(config)):
        if isinstance(noun, NOUNS):
            for item in fields(noun):  # type: ignore[arg-type]
                value = getattr(noun, item.name)
                if value is not None:
                    followed[item.metadata["java"]] = str(value).lower() if isinstance(value, bool) else str(value)
    version = config.release.version
    told = ((name, setting.default_of(version)) for name, setting in JAVA_SETTINGS.items())
    defaults = {name: default for name, default in told if default is not None}
    # mqadmin exportMetrics reads the machine's size from it
    defaults["clientCallbackExecutorThreads"] = str(os.cpu_count() or 1)
    values = defaults | followed | dict(config.settings) | _worked_out(config)
    return {name: value for name, value in values.items() if name not in SECRETS}


def _worked_out(config: StoreConfig) -> dict[str, str]:
    """Settings that depend on other settings. Java: BrokerStartup, ConsumerFilterManager."""
    filters = config.filters
    shape = BloomFilter.of(filters.max_error_rate_of_bloom_filter, filters.expect_consumer_num_use_filter)
    return {
        "bitMapLengthConsumeQueueExt": str(shape.bit_count),
        "haListenPort": str(config.replication.ha_listen_port or config.identity.listen_port + 1),
    }


def requested_settings(text: bytes) -> dict[str, str]:
    """The settings in a change request, by Java's names. Raises ConfigurationError for a text that is no properties."""
    return {found.key: found.value for found in parse_properties(text, None)}


def with_settings(config: StoreConfig, changes: Mapping[str, str]) -> StoreConfig:
    """The configuration with these changes; unknown names are ignored. Raises ConfigurationError.

    Its settings of sends, pulls, clients, transactions and retention are the new ones. The others belong to the store that is open.
    """
    values = dict(config.settings) | {name: value for name, value in changes.items() if name in JAVA_SETTINGS}
    text = "".join(f"{name}={escaped_value(value)}\n" for name, value in values.items())
    found = parse_config(text.encode(), config.file)
    return replace(
        config,
        settings=found.settings,
        send=found.send,
        pull=found.pull,
        clients=found.clients,
        transaction=found.transaction,
        retention=found.retention,
    )


def changed_text(content: bytes, changes: Mapping[str, str]) -> bytes:
    """The text of a broker.conf with these changes; unknown names are ignored. Raises ConfigurationError."""
    return changed_properties(content, {name: value for name, value in changes.items() if name in JAVA_SETTINGS})
