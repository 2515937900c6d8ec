"""A topic that is not there: the nearest one, ten names at most, and `subscribe` for a list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.conditions import OptionError
from spark_mq.source.cluster import Cluster
from spark_mq.source.options import SourceOptions
from spark_mq.source.selection import _advice, select_queues
from storage import StoreConfig, open_store
from storage.errors import ColumnIllegalError
from storage.rules.row_columns import check_names

TOPICS = ["TopicA", *(f"Other{n}" for n in range(30))]


def test_a_misspelt_topic_names_the_nearest_one_and_ten_at_most() -> None:
    text = _advice("topic", ["Topica"], TOPICS)
    assert text.startswith("; did you mean TopicA? There are TopicA, Other0")
    assert text.endswith("and 21 more")


@pytest.mark.parametrize("given", ["TopicA,TopicB", '["TopicA", "TopicB"]'])
def test_a_list_of_topics_points_to_subscribe(given: str) -> None:
    assert "give several in the option subscribe" in _advice("topic", [given], TOPICS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with open_store(tmp_path / "store", config=StoreConfig.tiny(), read_only=False, create=True) as store:
        store.put("orders", b"body", queue_id=0)
    opened = Cluster.open([f"{tmp_path}/store"])
    yield opened
    opened.close()


def _selected(cluster: Cluster, **options: str) -> int:
    (store,) = cluster.stores.values()
    return len(select_queues(cluster, SourceOptions.parse({"path": store.root, **options})))


def test_a_pattern_without_a_match_is_refused_unless_it_may_be_empty(cluster: Cluster) -> None:
    with pytest.raises(OptionError) as caught:
        _selected(cluster, subscribePattern="order")
    (root,) = (store.root for store in cluster.stores.values())
    rule = "a pattern matches the whole name of a topic"
    assert caught.value.describe() == (
        f"option subscribePattern: 'order' matches no topic in {root} ({rule}); there are orders; "
        "allowEmpty=true waits for topics that are made later"
    )
    assert _selected(cluster, subscribePattern="order", allowEmpty="true") == 0
    with pytest.raises(OptionError, match="allowEmpty: belongs to subscribePattern"):
        _selected(cluster, topic="orders", allowEmpty="true")


@pytest.mark.filterwarnings("error")
def test_a_pattern_with_a_match_is_no_news(cluster: Cluster) -> None:
    assert _selected(cluster, subscribePattern="ord.*") == 1
    assert _selected(cluster, subscribePattern="ord.*", queueId="7") == 0


def test_a_renamed_body_is_missing_before_its_new_name_is_strange() -> None:
    with pytest.raises(ColumnIllegalError) as caught:
        check_names(["message", "keys"], ["body", "keys"], ["sys_flag"], needed="body")
    assert caught.value.describe() == "column body: it is missing; there are message, keys"
