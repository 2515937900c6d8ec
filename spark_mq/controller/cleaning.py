"""An operator has the controller forget brokers: 1011.

Forgotten brokers must be gone: without ids the group may have no master, and an id that is named may not be alive.
`isCleanLivingBroker` takes that back; as in Java all brokers of the name are forgotten then, whatever ids are named.

Java: ReplicasInfoManager.cleanBrokerData. Departure: whether a broker is alive is looked up in its own cluster, whichever the request
names.
"""

from __future__ import annotations

import re

from spark_mq.controller.decided import Decided, refused
from spark_mq.controller.events import CleanBrokerData
from spark_mq.controller.liveness import LivingBrokers
from spark_mq.controller.state import ControllerState
from spark_mq.remoting.controller_headers import CleanBrokerDataRequest
from storage.rules.response_codes import ResponseCode

_ID = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def clean_broker_data(state: ControllerState, asked: CleanBrokerDataRequest, living: LivingBrokers) -> Decided:
    """1011."""
    name, text = asked.broker_name, (asked.broker_ids_to_clean or "").strip()
    group = state.groups.get(name)
    if asked.cleans_living:
        broker_ids = None
    elif not text:
        if group is not None and group.master_id is not None:
            return _refused(f"Broker {name} is still alive, clean up failure")
        broker_ids = None
    else:
        broker_ids = _ids_of(text)
        if broker_ids is None:
            return _refused(
                "Please set the option <brokerControllerIdsToClean> according to the format: numbers between semicolons"
            )
        for broker_id in broker_ids:
            if group is not None and living.is_alive(group, broker_id):
                return _refused(f"Broker [{name},  {broker_id}] is still alive, clean up failure")
    if group is None:
        return _refused(f"Broker {name} is not existed,clean broker data failure.")
    return Decided(events=(CleanBrokerData(broker_name=name, broker_ids=broker_ids),))


def _ids_of(text: str) -> tuple[int, ...] | None:
    """The ids between semicolons, each once; None where one is none."""
    parts = text.rstrip(";").split(";")
    if not all(_ID.fullmatch(part) for part in parts):
        return None
    found = tuple(sorted({int(part) for part in parts}))
    return found if all(-(1 << 63) <= each < 1 << 63 for each in found) else None


def _refused(remark: str) -> Decided:
    return refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)
