"""All kinds of torture, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.torture import (
    bit_flips,
    drivers,
    failed_io,
    fuzz,
    kernels,
    kills,
    power_loss,
    simulations,
    state_machine,
)
from tests.torture.kind import Kind

_ALL: tuple[Kind, ...] = (
    power_loss.KIND,
    failed_io.KIND,
    bit_flips.KIND,
    fuzz.KIND,
    kernels.KIND,
    drivers.KIND,
    simulations.ELECTIONS,
    state_machine.KIND,
    simulations.REPLICAS,
    simulations.CONTROLLED_REPLICAS,
    kills.KIND,
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})
