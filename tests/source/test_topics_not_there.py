"""A topic that is not there: the nearest one, ten names at most, and `subscribe` for a list."""

from __future__ import annotations

import pytest

from spark_mq.sink.columns import check_names
from spark_mq.source.selection import _advice
from storage.errors import ColumnIllegalError

TOPICS = ["TopicA", *(f"Other{n}" for n in range(30))]


def test_a_misspelt_topic_names_the_nearest_one_and_ten_at_most() -> None:
    text = _advice("topic", ["Topica"], TOPICS)
    assert text.startswith("; did you mean TopicA? There are TopicA, Other0")
    assert text.endswith("and 21 more")


@pytest.mark.parametrize("given", ["TopicA,TopicB", '["TopicA", "TopicB"]'])
def test_a_list_of_topics_points_to_subscribe(given: str) -> None:
    assert "give several in the option subscribe" in _advice("topic", [given], TOPICS)


def test_a_renamed_body_is_missing_before_its_new_name_is_strange() -> None:
    with pytest.raises(ColumnIllegalError) as caught:
        check_names(["message", "keys"], ["body", "keys"], ["sys_flag"], needed="body")
    assert caught.value.describe() == "column body: it is missing; there are message, keys"
