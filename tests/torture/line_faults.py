"""Faults that are one line of a function: other text in its source, of which it is compiled anew.

    Line(module, function, right, wrong, judge)      `function` as `Class.method` where it is one

For what takes more than a line, see `faults.py`. A line that does not stand there exactly once is an error, so that a fault whose place
has changed does not pass for a noticed one.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock


class Line(NamedTuple):
    """A line, what it becomes, and the test that must fail then."""

    module: str
    function: str
    right: str
    wrong: str
    judge: str


_ROLES, _TRUNCATION = "tests/storage/ha/test_roles.py::", "tests/storage/ha/test_truncation.py::"
_EXACT, _LIVE = "tests/sink/test_exact_writer.py::", "tests/sink/test_live_brokers.py::"
_CLOSING, _DEMANDS = "tests/client/test_closing.py::", "tests/access/test_demands.py::"
_SYNC_STATE = "storage.ha.sync_state"

LINES: Mapping[str, Line] = MappingProxyType(
    {
        "a replica that left while it joined joins with what it had then": Line(
            _SYNC_STATE,
            "SyncState._ready",
            "if each not in known or each in self.members]",
            "if each in self.members]",
            f"{_ROLES}test_who_leaves_while_it_joins_has_to_catch_up_with_all_that_has_come_since",
        ),
        "a replica joins without having caught up": Line(
            _SYNC_STATE,
            "SyncState._ready",
            "joining.target = end",
            "joining.target = replica.acknowledged",
            f"{_ROLES}test_a_replica_is_waited_for_before_the_controller_is_asked",
        ),
        "a question in doubt is forgotten when a new one begins": Line(
            _SYNC_STATE,
            "SyncState.asks",
            "self._asked | wanted",
            "wanted",
            f"{_ROLES}test_what_is_in_doubt_is_waited_for_when_something_else_is_asked_for",
        ),
        "a learner's copy counts for an acknowledgement": Line(
            "spark_mq.broker_server.replication",
            "tell",
            " if not replica.is_learner",
            "",
            "tests/broker_server/test_slaves.py::test_a_learners_copy_acknowledges_nothing",
        ),
        "a cut leaves a checkpoint that vouches for what was cut": Line(
            "storage.ha.truncation",
            "truncate_store",
            "min(checkpoint.physic_msg_timestamp, last_ms)",
            "checkpoint.physic_msg_timestamp",
            f"{_TRUNCATION}test_the_checkpoint_vouches_for_nothing_that_is_cut_before_it_is_cut",
        ),
        "an abort deletes what an intent names": Line(
            "spark_mq.sink.exact_writer",
            "abort_staged",
            "{file.name for file in intent.files}",
            "set()",
            f"{_EXACT}test_an_abort_leaves_the_files_that_an_intent_names",
        ),
        "the fence is content with one look": Line(
            "spark_mq.sink.live_brokers",
            "LiveBrokers.fence",
            "time.sleep(_SETTLE_S)",
            "continue",
            f"{_LIVE}test_a_row_that_a_thread_of_the_broker_had_in_hand_at_the_first_look_is_there_behind_the_fence",
        ),
        "the last writing of offsets does not wait": Line(
            "spark_mq.client.push_engine",
            "PushEngine.close",
            ", wait=True",
            "",
            f"{_CLOSING}test_the_last_writing_of_a_push_consumer_waits_for_its_answer",
        ),
        "the last writing of a pull consumer does not wait": Line(
            "spark_mq.client.pull_engine",
            "PullEngine.close",
            ", wait=True",
            "",
            f"{_CLOSING}test_what_a_pull_consumer_stores_for_good_waits_for_its_answer",
        ),
        "a pull that parks does not look again": Line(
            "spark_mq.broker.pull",
            "PullHandler._park",
            "if maximum > found.max_offset:",
            "if False:",
            "tests/broker/test_parked_pulls.py::"
            "test_a_message_that_comes_between_the_look_and_the_parking_wakes_the_pull",
        ),
        "a deleted group keeps its pending reset": Line(
            "spark_mq.broker.group_offsets",
            "GroupOffsets.forget_group",
            "self._resets, ",
            "",
            "tests/broker/test_deleted_topics.py::test_a_reset_that_waits_does_not_hold_for_the_next_group_of_the_name",
        ),
        "dead letter topics are topics for who does not send": Line(
            "spark_mq.access.demands",
            "_demand",
            "if name.startswith(prefix):",
            "if name.startswith(prefix) and (prefix == RETRY_PREFIX or Action.PUB in need.actions):",
            f"{_DEMANDS}test_a_topic_of_a_group_is_the_groups_whatever_is_done_to_it",
        ),
    }
)
"""What is wrong → where, and who must see it."""


@contextmanager
def planted(line: Line) -> Iterator[None]:
    """The fault, as long as the context lasts, wherever the function is known by its name. LookupError where its line is not there."""
    module: Any = importlib.import_module(line.module)
    owner_name, _, name = line.function.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    right = inspect.getattr_static(owner, name)
    wrong = _compiled(line, module, name, right)
    with ExitStack() as stack:
        if owner is not module:
            stack.enter_context(mock.patch.object(owner, name, wrong))
        else:
            for holder in [each for each in sys.modules.values() if getattr(each, "__dict__", {}).get(name) is right]:
                stack.enter_context(mock.patch.object(holder, name, wrong))
        yield


def _compiled(line: Line, module: Any, name: str, right: Any) -> Any:
    """In the names of its module, and decorated as it is."""
    source = textwrap.dedent(inspect.getsource(right.fget if isinstance(right, property) else right))
    if source.count(line.right) != 1:
        raise LookupError(f"{line.module}.{line.function} has not one {line.right!r}")
    made: dict[str, Any] = {}
    text = source.replace(line.right, line.wrong)
    exec(
        compile(text, line.module, "exec", __future__.annotations.compiler_flag, dont_inherit=True), vars(module), made
    )
    return made[name]
