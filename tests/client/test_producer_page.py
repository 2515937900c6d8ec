"""The page on producers lists every setting with its default."""

from __future__ import annotations

import re
from dataclasses import fields

from spark_mq.client.settings import RETRIED_CODES, ProducerSettings
from tests.support.pages import marked, rows
from tests.support.places import PROJECT

PAGE = (PROJECT / "docs" / "producers.md").read_text("utf-8")


def test_the_page_lists_each_setting_with_its_default() -> None:
    _, table = marked("producer settings")
    told = {name.strip("`"): default for name, default, _ in rows(table)}
    defaults = {each.name: str(getattr(ProducerSettings(), each.name)) for each in fields(ProducerSettings)}
    assert told == defaults | {"retried_codes": "the eight above"}


def test_the_page_names_the_codes_after_which_a_send_is_tried_again() -> None:
    listed = re.search(r"may be this broker's alone \(([\d, ]+)\)", PAGE)
    assert listed is not None
    assert set(map(int, listed[1].split(","))) == set(RETRIED_CODES)
