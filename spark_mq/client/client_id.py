"""Who a client is for brokers: an id that no other living client has. Java: ClientConfig.buildMQClientId."""

from __future__ import annotations

import os
import socket
import time

from spark_mq.client.settings import ClientSettings, split_address


def make_client_id(settings: ClientSettings) -> str:
    """IP@PID#nanoseconds, or IP@name where the settings name the instance, then @unit."""
    name = settings.instance_name if settings.has_own_name else f"{os.getpid()}#{time.monotonic_ns()}"
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    return f"{settings.client_ip or local_ip(settings.name_servers)}@{name}{unit}"


def local_ip(name_servers: tuple[str, ...]) -> str:
    """The address of this machine on the way to the first name server that has one; nothing is sent."""
    for address in name_servers:
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, port))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"
