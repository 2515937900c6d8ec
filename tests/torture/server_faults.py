"""Faults planted into servers, and who notices them: strangers, clocks that are set, settings over the wire, too few open files.

As `faults.py`: each function plants one fault, as a context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import spark_mq.broker.broker
import spark_mq.broker.broker_settings
import spark_mq.namesrv.registration
import spark_mq.namesrv.server
import spark_mq.remoting_server.administration
import spark_mq.remoting_server.server
import storage.ha.listener
import storage.settings.java_settings
from spark_mq.broker.client_tables import Clients, ConsumerTable
from spark_mq.controller.decisions import Applications
from spark_mq.controller.state import Replica
from spark_mq.namesrv.settings import NameServerSettings
from storage.epoch_times import current_time_ms
from storage.ha.listener import ReplicationListener
from storage.ha.sessions import MasterSession, Place, who_gives_way
from storage.service.put_service import PutService

_Fault = tuple[Callable[[], AbstractContextManager[Any]], tuple[str, ...], str]
"""What is planted, who notices it, and what his words show."""

_DUTIES = "tests/broker/test_broker_duties.py"
_REGISTRATION = "tests/namesrv/test_registration.py"
_RULES = "tests/controller/test_rules.py"
_PEERS = "tests/ha/test_hostile_peers.py"
_PLACES = f"{_PEERS}::test_strangers_that_take_all_places_keep_no_slave_of_another_host_away"
_CHANGED = f"{_DUTIES}::test_a_changed_setting_stands_in_its_place_and_what_only_a_start_reads_is_refused"


def _broker_goes_by_the_machines_clock() -> AbstractContextManager[Any]:
    made = Clients.__init__

    def with_one_clock(self: Clients, *given: Any, clock: Callable[[], int], **named: Any) -> None:
        made(self, *given, **{**named, "clock": clock, "steady": clock})

    return mock.patch.object(Clients, "__init__", with_one_clock)


def _name_server_goes_by_the_machines_clock() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.namesrv.server, "steady_time_ms", current_time_ms)


def _held_log_goes_by_the_machines_clock() -> AbstractContextManager[Any]:
    made = PutService.__init__

    def with_one_clock(self: PutService, store: Any, **named: Any) -> None:
        made(self, store, **{**named, "steady": store.writer.clock})

    return mock.patch.object(PutService, "__init__", with_one_clock)


def _told_subscriptions_expire_by_their_version() -> AbstractContextManager[Any]:
    tell = ConsumerTable.tell

    def by_version(self: ConsumerTable, name: str, subscription: Any, now_ms: int) -> None:
        tell(self, name, subscription, subscription.sub_version)

    return mock.patch.object(ConsumerTable, "tell", by_version)


def _nobody_gives_way() -> AbstractContextManager[Any]:
    return mock.patch.object(storage.ha.listener, "who_gives_way", return_value=None)


def _hosts_are_not_counted() -> AbstractContextManager[Any]:
    def of_many_hosts(places: list[Place], newcomer: Place) -> int | None:
        return who_gives_way(
            [place._replace(host=str(at)) for at, place in enumerate(places)], newcomer._replace(host="newcomer")
        )

    return mock.patch.object(storage.ha.listener, "who_gives_way", of_many_hosts)


def _whoever_speaks_is_not_silent() -> AbstractContextManager[Any]:
    return mock.patch.object(MasterSession, "is_silent", lambda self, now_ms: self._silence.is_over(now_ms))


def _no_slave_is_known() -> AbstractContextManager[Any]:
    return mock.patch.object(Clients, "note_slave")


def _anybody_takes_a_known_brokers_id() -> AbstractContextManager[Any]:
    identify = ReplicationListener._identify

    def of_equals(self: ReplicationListener, connection: Any, said: Any) -> None:
        settings = mock.Mock(wraps=self._settings, knows=self._settings.knows, is_known=lambda host: False)
        with mock.patch.object(self, "_settings", settings):
            identify(self, connection, said)

    return mock.patch.object(ReplicationListener, "_identify", of_equals)


def _any_setting_is_changed_by_request() -> AbstractContextManager[Any]:
    return mock.patch.object(storage.settings.java_settings, "is_fixed", return_value=False)


def _a_changed_setting_comes_at_the_end() -> AbstractContextManager[Any]:
    def at_the_end(content: bytes, changes: Mapping[str, str]) -> bytes:
        return content + "".join(f"{name}={value}\n" for name, value in changes.items()).encode()

    return mock.patch.object(spark_mq.broker.broker_settings, "changed_properties", at_the_end)


def _a_changed_file_has_nothing_but_the_change() -> AbstractContextManager[Any]:
    changed = spark_mq.remoting_server.administration.changed_properties
    return mock.patch.object(
        spark_mq.remoting_server.administration, "changed_properties", lambda content, changes: changed(b"", changes)
    )


def _applications_stay() -> AbstractContextManager[Any]:
    return mock.patch.object(Applications, "lapsed", return_value=())


def _applications_are_not_bounded() -> AbstractContextManager[Any]:
    return mock.patch.object(Applications, "giving_way", return_value=())


def _the_oldest_application_gives_way() -> AbstractContextManager[Any]:
    note = Applications.note
    return mock.patch.object(Applications, "note", lambda self, state, host, now_ms: note(self, state, "", now_ms))


def _who_applied_is_registered() -> AbstractContextManager[Any]:
    return mock.patch.object(Replica, "is_pending", False)


def _brokers_register_from_everywhere() -> AbstractContextManager[Any]:
    return mock.patch.object(NameServerSettings, "may_register", return_value=True)


def _a_connection_registers_without_bound() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.namesrv.registration, "_check_connection")


def _names_of_refused_brokers_stay() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.namesrv.registration, "drop_name")


def _a_taken_name_is_not_said() -> AbstractContextManager[Any]:
    registered = spark_mq.namesrv.registration.Registered._replace
    return mock.patch.object(
        spark_mq.namesrv.registration.Registered,
        "_replace",
        lambda self, **named: registered(self, **{**named, "other_address": None}),
    )


def _a_server_starts_with_few_files() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.remoting_server.server, "need_files", return_value=4_096)


SERVER_FAULTS: Mapping[str, _Fault] = {
    "a broker's clients expire by the machine's clock": (
        _broker_goes_by_the_machines_clock,
        (f"{_DUTIES}::test_a_clock_that_is_set_closes_no_connection_frees_no_lock_and_answers_no_pull",),
        r"assert not \['ann'\]|parked|bob",
    ),
    "a name server's brokers expire by the machine's clock": (
        _name_server_goes_by_the_machines_clock,
        ("tests/namesrv/test_server.py::test_a_clock_that_is_set_empties_no_route",),
        "Error",
    ),
    "a put holds the log by the machine's clock": (
        _held_log_goes_by_the_machines_clock,
        (
            "tests/storage/service/test_put_service.py::"
            "test_while_one_put_holds_the_log_for_long_others_are_refused[SYNC_FLUSH]",
        ),
        "is_os_page_cache_busy",
    ),
    "a subscription that a pull brought expires by its version": (
        _told_subscriptions_expire_by_their_version,
        ("tests/broker/test_client_tables.py::test_what_a_pull_says_of_its_subscription_lasts_from_then_on",),
        "assert",
    ),
    "no place is given up at the HA port": (_nobody_gives_way, (f"{_PLACES}[no place]",), "rounds|assert"),
    "places at the HA port are not counted by host": (_hosts_are_not_counted, (f"{_PLACES}[the end]",), "assert"),
    "whoever says eight bytes keeps a place at the HA port": (
        _whoever_speaks_is_not_silent,
        (f"{_PEERS}::test_who_asks_for_no_place_is_hung_up_on_whatever_it_says",),
        "has_ended",
    ),
    "no slave is known at the HA port": (
        _no_slave_is_known,
        ("tests/broker_server/test_slaves.py::test_a_broker_serves_its_log_and_says_how_far_its_slaves_are",),
        "nobody but a slave asks for that",
    ),
    "a stranger takes a known broker's id at the HA port": (
        _anybody_takes_a_known_brokers_id,
        ("tests/storage/ha/test_replicating.py::test_a_host_of_which_nothing_is_known_takes_no_id_from_a_known_one",),
        "assert",
    ),
    "a request changes any setting": (_any_setting_is_changed_by_request, (_CHANGED,), "16"),
    "a changed setting comes at the file's end": (_a_changed_setting_comes_at_the_end, (_CHANGED,), "fileReservedTime"),
    "a changed file of settings loses its comments": (
        _a_changed_file_has_nothing_but_the_change,
        ("tests/namesrv/test_server.py::test_changed_settings_are_written_so_that_they_are_read_again",),
        "# ours",
    ),
    "an id that was applied for never lapses": (
        _applications_stay,
        (f"{_RULES}::test_invented_names_shut_out_nobody_and_lapse",),
        "late",
    ),
    "ids that were applied for are not bounded": (
        _applications_are_not_bounded,
        (f"{_RULES}::test_invented_names_shut_out_nobody_and_lapse",),
        "== 1000",
    ),
    "the oldest application gives way, whoever has the most": (
        _the_oldest_application_gives_way,
        (f"{_RULES}::test_invented_names_shut_out_nobody_and_lapse",),
        r"\{1, 2\}",
    ),
    "who has applied for an id counts as registered": (
        _who_applied_is_registered,
        (f"{_RULES}::test_ids_that_nobody_registers_shut_no_group",),
        "assert",
    ),
    "brokers register from everywhere": (
        _brokers_register_from_everywhere,
        (f"{_REGISTRATION}::test_brokers_register_from_named_networks_alone",),
        "10.2.0.1",
    ),
    "a connection registers as much as it wants": (
        _a_connection_registers_without_bound,
        (f"{_REGISTRATION}::test_what_one_connection_registers_is_bounded",),
        "DID NOT RAISE",
    ),
    "the name of a refused broker stays": (
        _names_of_refused_brokers_stay,
        (f"{_REGISTRATION}::test_a_topic_that_registers_alone_before_its_broker_is_refused_and_leaves_no_name",),
        r"== \{\}",
    ),
    "a living broker's name is taken without a word": (
        _a_taken_name_is_not_said,
        (f"{_REGISTRATION}::test_a_living_brokers_name_that_another_address_takes_is_said_with_both_addresses",),
        "not enough values to unpack",
    ),
    "a server starts that may open few files": (
        _a_server_starts_with_few_files,
        ("tests/files/test_file_limit.py::test_a_listener_that_may_open_few_files_does_not_listen",),
        "DID NOT RAISE",
    ),
}
"""What is wrong → who must see it."""
