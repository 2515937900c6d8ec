"""Who is online, who is told of changes, who is dropped; who holds which queue."""

from __future__ import annotations

from spark_mq.broker.client_tables import LOCK_LIVES_MS, Change, ConsumerTable, KnownClient, ProducerTable, QueueLocks
from spark_mq.broker.requests import ClientConnection
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.consumers import ConsumerData, SubscriptionData

ANN, BOB = (ClientConnection(bytes(8), name) for name in ("ann", "bob"))


def client(connection: ClientConnection, seen_ms: int = 0) -> KnownClient:
    return KnownClient(connection, f"{connection.address}@id", "JAVA", 479, seen_ms)


def data(*topics: str, version: int = 1, model: str = "CLUSTERING") -> ConsumerData:
    subscriptions = tuple(SubscriptionData(topic=topic, sub_version=version) for topic in topics)
    return ConsumerData(group_name="team", message_model=model, subscriptions=subscriptions)


def test_new_clients_and_topics_are_changes_and_newer_versions_are_none() -> None:
    table = ConsumerTable()
    assert table.register(data("T"), client(ANN), notifies=True) == Change("team", (ANN,))
    assert table.register(data("T"), client(BOB), notifies=True) == Change("team", (ANN, BOB))
    assert table.register(data("T"), client(BOB), notifies=True) is None
    assert table.register(data("T", version=2), client(BOB), notifies=True) is None
    assert table.groups["team"].subscriptions["T"].sub_version == 2
    table.register(data("T", version=1), client(BOB), notifies=True)
    assert table.groups["team"].subscriptions["T"].sub_version == 2
    assert table.register(data("T", "U"), client(BOB), notifies=True) is not None
    assert table.register(data("T"), client(BOB), notifies=True) is not None
    assert "U" not in table.groups["team"].subscriptions
    assert table.register(data("V"), client(BOB), notifies=False) is None


def test_a_heartbeat_without_subscriptions_leaves_them() -> None:
    table = ConsumerTable()
    table.register(data("T"), client(ANN), notifies=True)
    assert table.register(data(), client(ANN, 7), notifies=True, with_subscriptions=False) is None
    assert list(table.groups["team"].subscriptions) == ["T"]
    assert table.groups["team"].clients[ANN].seen_ms == 7


def test_broadcasting_groups_are_told_nothing() -> None:
    table = ConsumerTable()
    assert table.register(data("T", model="BROADCASTING"), client(ANN), notifies=True) is None
    assert table.closed(ANN) == (["team"], [])


def test_those_that_stay_hear_of_one_that_leaves_or_hangs_up() -> None:
    table = ConsumerTable()
    for connection in (ANN, BOB):
        table.register(data("T"), client(connection), notifies=True)
    assert table.unregister("team", BOB, notifies=True) == (False, Change("team", (ANN,)))
    table.register(data("T"), client(BOB), notifies=True)
    assert table.closed(BOB) == ([], [Change("team", (ANN,))])
    assert table.groups_of("T") == {"team"}
    assert table.unregister("team", ANN, notifies=True) == (True, Change("team", ()))
    assert not table.groups
    assert table.groups_of("T") == set()


def test_silent_clients_are_dropped_after_two_minutes_and_nobody_hears_of_it() -> None:
    table, producers = ConsumerTable(), ProducerTable()
    table.register(data("T"), client(ANN, 0), notifies=True)
    table.register(data("T"), client(BOB, 60_000), notifies=True)
    producers.register("makers", client(ANN, 0))
    assert table.expire(120_000) == producers.expire(120_000) == []
    assert table.expire(120_001) == producers.expire(120_001) == [ANN]
    assert list(table.groups["team"].clients) == [BOB]
    assert table.expire(180_001) == [BOB]
    assert not table.groups
    assert not producers.groups


def test_producers_take_turns_and_are_found_by_client_id() -> None:
    producers = ProducerTable()
    assert producers.any_of("makers") is None
    for connection in (ANN, BOB):
        producers.register("makers", client(connection))
    assert {producers.any_of("makers"), producers.any_of("makers")} == {ANN, BOB}
    assert producers.of_client("bob@id") is BOB
    producers.closed(BOB)
    assert producers.of_client("bob@id") is None
    producers.unregister("makers", ANN, "ann@id")
    assert not producers.groups


def test_a_producer_is_found_by_its_id_as_long_as_it_is_there() -> None:
    """Java forgets the id with the old connection, or with one of two groups, and replies fail from then on."""
    producers = ProducerTable()
    old, new = (KnownClient(connection, "id", "JAVA", 479, 0) for connection in (ANN, BOB))
    for group in ("makers", "others"):
        producers.register(group, old)
    producers.unregister("makers", ANN, "id")
    assert producers.of_client("id") is ANN
    producers.register("others", new)  # it has connected again, before the broker sees that the old connection is gone
    assert producers.of_client("id") is BOB
    producers.closed(ANN)
    assert producers.of_client("id") is BOB
    producers.unregister("others", BOB, "id")
    assert producers.of_client("id") is None
    assert not producers.groups


def test_a_producer_on_two_connections_expires_with_the_newer_one() -> None:
    producers = ProducerTable()
    for connection, seen_ms in ((ANN, 0), (BOB, 5)):
        producers.register("makers", KnownClient(connection, "id", "JAVA", 479, seen_ms))
    assert producers.expire(120_001) == [ANN]
    assert producers.of_client("id") is BOB
    producers.register("makers", KnownClient(BOB, "id", "JAVA", 479, 60_000))
    assert producers.expire(180_000) == []
    assert producers.expire(180_001) == [BOB]
    assert producers.of_client("id") is None


def test_a_consumer_that_takes_another_id_on_its_connection_is_known_by_that() -> None:
    table = ConsumerTable()
    table.register(data("T"), client(ANN), notifies=True)
    assert table.register(data("T"), KnownClient(ANN, "another", "JAVA", 479, 0), notifies=True) is None
    assert (table.find("team", "ann@id"), table.find("team", "another") is not None) == (None, True)


def test_what_pulls_say_of_a_subscription_is_forgotten_ten_minutes_later() -> None:
    table = ConsumerTable()
    table.tell("pullers", SubscriptionData(topic="T", sub_version=1), 1_000)
    table.tell("pullers", SubscriptionData(topic="U", sub_version=1), 5_000)
    table.expire(601_000)
    assert table.subscription("pullers", "T") is not None
    table.expire(601_001)
    assert table.subscription("pullers", "T") is None
    assert table.subscription("pullers", "U") is not None
    table.expire(605_001)
    assert table.subscription("pullers", "U") is None


def test_a_queue_is_its_lockers_until_the_lock_expires_or_is_given_up() -> None:
    locks = QueueLocks()
    first, second = (MessageQueue("T", "b", number) for number in range(2))
    assert locks.lock("team", (first,), "ann", 0) == (first,)
    assert locks.lock("team", (first, second), "bob", 1) == (second,)
    assert locks.lock("others", (first,), "bob", 1) == (first,)
    locks.unlock("team", (first,), "bob")
    assert locks.lock("team", (first,), "bob", 2) == ()
    assert locks.lock("team", (first,), "ann", 1_000) == (first,)  # again: its minute begins anew
    assert locks.lock("team", (first,), "bob", 1_000 + LOCK_LIVES_MS) == ()
    assert locks.holds_any("team", 1_000 + LOCK_LIVES_MS)
    assert locks.lock("team", (first,), "bob", 1_001 + LOCK_LIVES_MS) == (first,)
    locks.unlock("team", (first,), "bob")
    assert not locks.holds_any("team", 1_001 + LOCK_LIVES_MS)
    assert locks.lock("team", (first,), "ann", 1_002 + LOCK_LIVES_MS) == (first,)
    locks.unlock("team", (first,), "ann")
    assert locks.lock("team", (first,), "ann", 1_003 + LOCK_LIVES_MS) == (first,)  # Java does so, too
    assert locks.lock("team", (first,), "bob", 1_004 + LOCK_LIVES_MS) == ()


def test_locks_that_have_expired_are_forgotten() -> None:
    locks = QueueLocks()
    for second in range(600):  # another group with each second, and one that goes on
        locks.lock(f"group-{second}", (MessageQueue("T", "b", second),), "ann", second * 1_000)
        locks.lock("team", (MessageQueue("T", "b", 0),), "ann", second * 1_000)
        assert locks.count <= 2 * LOCK_LIVES_MS // 1_000 + 3
    assert locks.holds_any("team", 600_000)
    assert not locks.holds_any("group-0", 600_000)


def test_what_a_pull_says_of_its_subscription_lasts_from_then_on() -> None:
    """Its version is a time of the client's clock, which says nothing of when it was heard."""
    table = ConsumerTable(subscription_expires_ms=1_000)
    for version, now_ms in ((1_800_000_000_000, 50), (7, 500)):
        table.tell("team", SubscriptionData(topic="T", sub_version=version), now_ms)
        table.expire(now_ms + 1_000)
        assert table.subscription("team", "T") is not None
    table.expire(1_501)
    assert table.subscription("team", "T") is None
