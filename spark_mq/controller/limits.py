"""How much a controller takes from processes that it does not know: lengths and numbers. Java sets no limits."""

from __future__ import annotations

from dataclasses import dataclass

from spark_mq.controller.state import ControllerState, Group
from storage.rules.response_codes import RequestRefusedError, ResponseCode


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """Of names in characters, of bodies in bytes, of the rest in numbers."""

    name_length: int = 255
    """Of a cluster, a broker or an address."""
    check_code_length: int = 512
    replicas_of_a_group: int = 100
    replicas: int = 10_000
    """Of all groups together, that have registered."""
    pending: int = 1_000
    """Of all groups together, that have applied for an id and not registered yet."""
    body_bytes: int = 1 << 20
    """Of a request."""


DEFAULT_LIMITS = ControllerLimits()


def check_name(kind: str, name: str, most: int = DEFAULT_LIMITS.name_length) -> None:
    """Raises RequestRefusedError for a name that is empty, too long, or cannot be printed."""
    if not name:
        raise _refused(f"the {kind} is empty")
    if len(name) > most:
        raise _refused(f"the {kind} {name[:32]!r}… is refused: it has {len(name)} characters, the limit is {most}")
    if not name.isprintable():
        raise _refused(f"the {kind} {name[:32]!r} is refused: it holds what cannot be printed")


def check_room(state: ControllerState, group: Group | None, limits: ControllerLimits = DEFAULT_LIMITS) -> None:
    """Raises RequestRefusedError where a registered broker more would be too many."""
    registered = 0 if group is None else sum(not replica.is_pending for replica in group.replicas.values())
    if registered >= limits.replicas_of_a_group:
        raise _refused(f"this controller takes at most {limits.replicas_of_a_group} brokers of a name")
    if state.registered_count >= limits.replicas:
        raise _refused(f"this controller takes at most {limits.replicas} brokers")


def check_body(size_bytes: int, limits: ControllerLimits = DEFAULT_LIMITS) -> None:
    """Raises RequestRefusedError for a body that no broker sends."""
    if size_bytes > limits.body_bytes:
        raise _refused(f"the body has {size_bytes} bytes, the limit is {limits.body_bytes}")


def _refused(remark: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
