"""Texts by namespace and key, which operators keep at the name servers, and their file.

ORDER_TOPIC_CONFIG is the namespace of topics whose messages are ordered over several brokers: topic → `broker:queues;…`. Brokers are
given it when they register, clients with a route. Each change gives a new table; whoever makes it saves it first.

The file is `{"configTable":{NAMESPACE:{KEY:VALUE}}}`. Java: KVConfigManager, KVConfigSerializeWrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_mq.remoting.body_fields import WireBody, read_body, write_body
from spark_mq.remoting.errors import BodyError
from storage.errors import StateFileError
from storage.rules.response_codes import RequestRefusedError, ResponseCode

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
_CHARACTERS_MOST = 2 << 20
"""Of all namespaces, keys and values together. Java sets no limit."""


class _KvFile(WireBody):
    config_table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KvConfig:
    """All texts. A namespace without keys is there all the same, once it had one."""

    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def get(self, namespace: str, key: str) -> str | None:
        """The text; None where there is none."""
        return self.tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All texts of a namespace; None for one that never had any."""
        return self.tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> KvConfig:
        """With a text more, or another. Raises RequestRefusedError where that is too much."""
        changed = KvConfig({**self.tables, namespace: {**self.tables.get(namespace, {}), key: value}})
        if changed.character_count > _CHARACTERS_MOST:
            rule = f"a name server keeps at most {_CHARACTERS_MOST} characters of namespaces, keys and values"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, rule)
        return changed

    def delete(self, namespace: str, key: str) -> KvConfig:
        """Without that text."""
        if namespace not in self.tables:
            return self
        kept = {name: value for name, value in self.tables[namespace].items() if name != key}
        return KvConfig({**self.tables, namespace: kept})

    @property
    def character_count(self) -> int:
        """Of all namespaces, keys and values."""
        return sum(
            len(namespace) + sum(len(key) + len(value) for key, value in table.items())
            for namespace, table in self.tables.items()
        )

    def text(self) -> str:
        """The content of the file."""
        return write_body(_KvFile(config_table=self.tables)).decode()


def parse_kv_config(text: str, file: str) -> KvConfig:
    """The table that a file holds. Raises StateFileError."""
    try:
        return KvConfig(dict(read_body(_KvFile, text.encode()).config_table))
    except BodyError as error:
        raise StateFileError(file, 0, 0, f"{error.place}: {error.rule}") from None
