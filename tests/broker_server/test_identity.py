"""The id that a controller has given to a broker: kept in its store, applied for again under the same code."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.broker_server.controlled import Applied, IdentityFiles
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem


def test_what_was_applied_for_is_there_until_the_id_is_registered(tmp_path: Path) -> None:
    def identity(cluster: str = "C") -> IdentityFiles:
        return IdentityFiles(LocalFileSystem(), str(tmp_path), cluster, "b")

    assert identity().broker_id() is None
    identity().apply(Applied(2, "127.0.0.1:1;5"))
    assert identity().applied() == Applied(2, "127.0.0.1:1;5")
    assert (tmp_path / "brokerIdentity-temp").read_text("ascii") == "C#b#2#127.0.0.1:1;5"
    identity().keep(2)
    assert (identity().broker_id(), identity().applied()) == (2, Applied(2, "127.0.0.1:1;5"))
    assert (tmp_path / "brokerIdentity").read_text("ascii") == "C#b#2"
    assert identity().lapsed()
    assert (identity().broker_id(), identity().applied()) == (None, Applied(2, "127.0.0.1:1;5"))
    identity().keep(2)
    identity().registered()
    assert (identity().broker_id(), identity().applied(), identity().lapsed()) == (2, None, False)
    with pytest.raises(StoreRefusedError, match="of cluster C"):
        identity("D").broker_id()


@pytest.mark.parametrize("text", ["C#b", "C#b#x", "C#b#1#2"])
def test_what_is_no_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text, "ascii")
    with pytest.raises(StoreRefusedError, match="no broker's identity"):
        IdentityFiles(LocalFileSystem(), str(tmp_path), "C", "b").broker_id()
