"""The rows' own properties, as their column `properties` maps them: held to the rules and encoded. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.property_encoding import COLUMN_PROPERTIES, MapEntries
from storage.format.texts import SEPARATORS, is_valid, malformed_rows, rows_with
from storage.rows.values import Rejections
from storage.rules.message_texts import EMPTY, NOT_UTF8, UNWANTED, of_property, reserved


def read_properties(
    column: pa.Array | None, stated: dict[str, pa.Array | None], strict: bool, rejections: Rejections
) -> pa.Array | None:
    """The rows' own properties, encoded as large_string; None where no row has any.

    Reserved names (see `property_encoding`) are left out, or refused where `strict`. `stated` are the columns of properties that have
    one; what a row's map says of them must agree.
    """
    if column is None or column.null_count == len(column):
        return None
    entries = MapEntries.of(column)
    keep = ~entries.is_reserved
    if not keep.all():
        refused = entries.is_reserved.copy()
        for name, values in stated.items():
            found = entries.entries_of(name)
            rows = entries.rows[found]
            if values is None:
                agrees = np.zeros(len(found), bool)
            else:
                equal = pc.equal(entries.values.take(pa.array(found)), values.take(pa.array(rows))).fill_null(False)
                agrees = np.asarray(equal.to_numpy(zero_copy_only=False), bool)
            wrong = ~agrees
            if name == "__SHARDINGKEY":
                # The source has no such column, so where none is given its rows state it here.
                alone = np.ones(len(found), bool) if values is None else ~is_valid(values)[rows]
                keep[found[alone]], refused[found[alone]] = True, False
                wrong &= ~alone
            rule = f"{name} is reserved and not what column {COLUMN_PROPERTIES[name]} says: use the column"
            rejections.add(rows[wrong], "properties", rule)
        if strict:
            names = dict(
                zip(entries.rows[refused].tolist(), entries.names.filter(pa.array(refused)).to_pylist(), strict=True)
            )
            rejections.add(np.unique(entries.rows[refused]), "properties", lambda row: reserved(names[row]))
        entries = entries.filter(keep)
    _check_entries(entries, rejections)
    return entries.encode()


def _check_entries(entries: MapEntries, rejections: Rejections) -> None:
    for what, texts in (("name", entries.names), ("value", entries.values)):
        if not len(texts):
            return

        def reject(found: np.ndarray, rule: str, what: str = what) -> None:
            first = dict(zip(entries.rows[found[::-1]].tolist(), found[::-1].tolist(), strict=True))
            rejections.add(
                np.unique(entries.rows[found]), "properties", lambda row: _of_entry(entries, first[row], what, rule)
            )

        reject(malformed_rows(texts), NOT_UTF8)
        reject(rows_with(texts, SEPARATORS), UNWANTED[SEPARATORS])
        if pc.min(sizes := pc.binary_length(texts)).as_py() == 0:
            reject(np.flatnonzero(sizes.to_numpy() == 0), EMPTY)


def _of_entry(entries: MapEntries, entry: int, what: str, rule: str) -> str:
    name = entries.names.slice(entry, 1).cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return of_property(name, what, rule)
