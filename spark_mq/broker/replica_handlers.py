"""What slaves ask their master for beside its log, and operators of a group ask of its brokers.

Java: AdminBrokerProcessor (60, 61, 402, 1007), SlaveSynchronize. 906, 907 and the other state files are `admin_handlers.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.broker.asked import Asked, Handler
from spark_mq.broker.parts import BrokerParts
from spark_mq.remoting import RemotingCommand, RequestCode
from storage.format import fastjson
from storage.format.timer import CHECKPOINT
from storage.rules.response_codes import ResponseCode
from storage.tables.data_version import DataVersion
from storage.tables.master_copies import REQUEST_MODES_FILE, TIMER_METRICS_FILE

_NO_MODES = '{"messageRequestModeMap":{}}'


class ReplicaHandlers:
    """Answers replicas."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def table(self) -> Mapping[int, Handler]:
        """Who answers which code."""
        code = RequestCode
        return {
            code.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            code.GET_TIMER_METRICS: self.timer_metrics,
            code.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            code.GET_BROKER_EPOCH_CACHE: self.epochs,
        }

    def timer_checkpoint(self, asked: Asked) -> RemotingCommand:
        """60: the seven numbers of config/timercheck, zeros where it is not there."""
        page = self._parts.timer_page()
        return asked.answer(body=page[: CHECKPOINT.itemsize].ljust(CHECKPOINT.itemsize, b"\0"))

    def timer_metrics(self, asked: Asked) -> RemotingCommand:
        """61: config/timermetrics."""
        if not self._parts.config.timer.timer_wheel_enable:
            return asked.answer(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        text = self._parts.service.state(TIMER_METRICS_FILE, lambda text, _: text)
        none = fastjson.to_text({"dataVersion": DataVersion().to_document(), "timingCount": {}})
        return asked.answer(body=(text or none).encode())

    def request_modes(self, asked: Asked) -> RemotingCommand:
        """402: config/messageRequestMode.json. A broker of ours only lets clients pull, but keeps what was set."""
        text = self._parts.service.state(REQUEST_MODES_FILE, lambda text, _: text)
        return asked.answer(body=(text or _NO_MODES).encode())

    def epochs(self, asked: Asked) -> RemotingCommand:
        """1007: where in the log each epoch begins and ends. Java: `mqadmin getBrokerEpoch`."""
        found = self._parts.epochs()
        if found is None:
            return asked.answer(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        return asked.answer(body=found)
