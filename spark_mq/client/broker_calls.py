"""One request to several brokers at once, and their answers together. Java: the loops of DefaultMQAdminExtImpl.

All are asked, whatever one of them answers; then the first error is raised, so that nobody takes a part for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from spark_mq.client.errors import ClientSettingError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.routes import read_address
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.routes import ClusterInfo
from storage.names import MASTER_ID
from storage.rules.response_codes import ResponseCode

T = TypeVar("T")


async def ask_all(
    instance: ClientInstance,
    addresses: Iterable[str],
    command: RemotingCommand,
    *,
    topic: str | None = None,
    group: str | None = None,
    accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
    timeout_ms: int | None = None,
) -> list[tuple[str, RemotingCommand]]:
    """The answer of each address, within `timeout_ms`, else within that of a question. Raises the first error, after all were asked."""
    timeout_ms = instance.settings.question_timeout_ms if timeout_ms is None else timeout_ms
    asked = list(dict.fromkeys(addresses))
    ask = instance.remoting.ask
    calls = [ask(each, command, timeout_ms, topic=topic, group=group, accepted=accepted) for each in asked]
    return list(zip(asked, await all_of(calls), strict=True))


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all calls, made at once. Raises the first error, after all have ended."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def masters(instance: ClientInstance, cluster: str | None) -> list[str]:
    """The masters of a cluster, or of all; ClientSettingError where there is none of that name."""
    info = await instance.name_servers.cluster_info()
    return [found[MASTER_ID] for found in brokers_of(info, cluster).values() if MASTER_ID in found]


async def one_of_each(instance: ClientInstance, cluster: str | None = None) -> list[str]:
    """An address for each broker name: the master's, else that of the lowest id."""
    info = await instance.name_servers.cluster_info()
    return [read_address(found) for found in brokers_of(info, cluster).values() if found]


async def all_addresses(instance: ClientInstance, cluster: str | None) -> list[str]:
    """Masters and slaves."""
    info = await instance.name_servers.cluster_info()
    return [address for found in brokers_of(info, cluster).values() for address in found.values()]


def brokers_of(info: ClusterInfo, cluster: str | None) -> dict[str, Mapping[int, str]]:
    """Addresses by broker name and id, of one cluster or of all. Pure."""
    names = info.cluster_address_table
    if cluster is not None and cluster not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ClientSettingError("cluster", cluster, f"the name server knows no such cluster; it knows: {known}")
    wanted = None if cluster is None else set(names[cluster])
    table = info.broker_address_table
    return {name: table[name].broker_addresses for name in sorted(table) if wanted is None or name in wanted}
