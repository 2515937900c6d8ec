"""Request code → who answers it, and in which pool. Java: NettyRemotingAbstract.processorTable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.request_runs import RequestRun, RunAnswers, RunFields
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import RequestPool
from storage.pending import Pending

PendingAnswer: TypeAlias = Pending[RemotingCommand | None]
PendingAnswers: TypeAlias = Pending[RunAnswers]
Answering: TypeAlias = Callable[[RemotingCommand, Peer], RemotingCommand | PendingAnswer | None]
"""The answer to a request of a peer. None: it is answered later with `Peer.respond`, or never.

A pending one is settled when the requests beside this one have been looked at: first in the thread of the pool, then on the loop.
Both may raise RequestRefusedError, which says what is answered; any other error is answered as SYSTEM_ERROR with its text.
"""


AnsweringRun: TypeAlias = Callable[[RequestRun, Peer], PendingAnswers | None]
"""The answers to requests that look alike. None, with nothing done: each must be answered by itself."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Processor:
    """Who answers, and where the requests wait. With `rejects` they are turned away unread while it says so."""

    answer: Answering
    pool: RequestPool
    rejects: Callable[[], bool] = _never
    answer_run: AnsweringRun | None = None
    """None: requests of this code do not come in runs."""


@dataclass(frozen=True, slots=True)
class Processors:
    """By code; a code that is not there goes to `default`, or is not supported."""

    table: Mapping[int, Processor] = field(default_factory=dict)
    default: Processor | None = None
    run_fields: Mapping[int, RunFields] = field(default_factory=dict)
    """Of the codes that may come in runs."""

    def find(self, code: int) -> Processor | None:
        """Who answers requests of the code."""
        return self.table.get(code, self.default)

    def pools(self) -> tuple[RequestPool, ...]:
        """All pools, each once."""
        every = [*self.table.values(), *([] if self.default is None else [self.default])]
        return tuple(dict.fromkeys(processor.pool for processor in every))
