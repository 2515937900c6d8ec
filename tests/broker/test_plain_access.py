"""The files of ACL 1.0, followed as they change, and requests 50 to 53 that change them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.access.users import AccessRules
from spark_mq.broker.broker import Broker
from spark_mq.broker.plain_access import LOOK_MS, PlainAccess
from spark_mq.client.calls import signed
from spark_mq.client.settings import Credentials
from spark_mq.remoting import RemotingCommand, make_request
from storage.errors import ConfigurationError, StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.rules.response_codes import RequestRefusedError
from tests.broker.peers import FakeClock
from tests.broker.test_access_handlers import Operator, running

HOST = "127.0.0.1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pytest.importorskip("yaml")
    found = tmp_path / "conf" / "plain_acl.yml"
    found.parent.mkdir()
    found.write_text("accounts:\n- {accessKey: operator, secretKey: operators-secret, admin: true}\n")
    return found


@pytest.fixture
def broker(tmp_path: Path, file: Path) -> Iterator[Broker]:
    with running(tmp_path / "store", AccessRules(plain_home=str(tmp_path))) as found:
        yield found


def send(key: str = "annette", secret: str = "annes-secret", topic: str = "T") -> RemotingCommand:
    return signed(make_request(310, {"b": topic}, b"body"), Credentials(key, secret))


def why_not(broker: Broker, command: RemotingCommand, host: str = HOST) -> str | None:
    assert broker.parts.access.plain is not None
    try:
        broker.parts.access.plain.check(command, host)
    except RequestRefusedError as refused:
        return (refused.remark or "").rpartition("AclException: ")[2]
    return None


def test_accounts_are_made_changed_and_dropped_and_hold_at_once(broker: Broker, file: Path) -> None:
    operator = Operator(broker, None)
    made: dict[str, Any] = {
        "accessKey": "annette",
        "secretKey": "annes-secret",
        "defaultTopicPerm": "DENY",
        "topicPerms": "T=PUB,U=SUB",
    }
    assert operator.ask(50, **made) == (0, None)
    assert (why_not(broker, send()), why_not(broker, send(topic="U"))) == (None, "No permission for topic:U")
    assert operator.ask(50, accessKey="annette", secretKey="annes-other", topicPerms="") == (0, None)
    assert why_not(broker, send()) == "Check signature failed for accessKey=annette"
    assert why_not(broker, send(secret="annes-other")) == "No default permission for topic:T"
    assert operator.ask(53, globalWhiteAddrs="127.0.0.1,10.*.*.*") == (0, None)
    assert (why_not(broker, send(secret="x")), why_not(broker, send(secret="x"), "10.1.2.3")) == (None, None)
    answer = operator.answer(52)
    version = json.loads((answer.ext_fields or {})["version"])
    assert (answer.code, version["counter"], (answer.ext_fields or {})["brokerName"]) == (0, 3, "b")
    assert json.loads((answer.ext_fields or {})["allAclFileVersion"]) == {str(file): version}
    assert operator.ask(51, accessKey="annette") == (0, None)
    assert why_not(broker, send(), "192.168.0.1") == "No acl config for annette"
    assert "annette" not in file.read_text()


def test_what_java_refuses_to_write_is_refused_with_its_codes_and_changes_nothing(broker: Broker, file: Path) -> None:
    operator, before = Operator(broker, None), file.read_bytes()
    short = "The accessKey=annette and its secretKey cannot be null and length should longer than 6"
    assert operator.ask(50, accessKey="annette", secretKey="short") == (209, short)
    account: dict[str, Any] = {"accessKey": "annette", "secretKey": "annes-secret"}
    assert operator.ask(50, **account, topicPerms="T=READ")[0] == 209
    assert operator.ask(50, **account, whiteRemoteAddress="1.2.3")[0] == 209
    gone = "The accessKey[annette] corresponding to accessConfig has been deleted failed."
    assert operator.ask(51, accessKey="annette") == (210, gone)
    assert operator.ask(53, globalWhiteAddrs="1.2.3")[0] == 211
    elsewhere = str(file.with_name("tools.yml"))
    assert operator.ask(53, globalWhiteAddrs="*", aclFileFullPath=elsewhere)[0] == 211
    assert operator.ask(54)[0] == 3
    assert file.read_bytes() == before


def test_files_are_followed_and_one_that_cannot_be_read_changes_nothing(broker: Broker, file: Path) -> None:
    clock = broker.parts.clients.steady
    assert isinstance(clock, FakeClock)

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        clock.now_ms += LOOK_MS
        broker.tick(clock.now_ms)

    ann = "accounts:\n- {accessKey: annette, secretKey: annes-secret, defaultTopicPerm: PUB}\n"
    write(more := file.parent / "acl" / "more.yaml", ann)
    assert why_not(broker, send()) is None
    write(more, ann.replace("PUB", "SUB"))
    assert why_not(broker, send()) == "No default permission for topic:T"
    write(more, "accounts: [")
    assert why_not(broker, send()) == "No default permission for topic:T"
    write(file.parent / "acl" / "notes.txt", "accounts: [")
    more.unlink()
    write(file, ann)
    assert why_not(broker, send()) is None
    assert why_not(broker, send("operator", "operators-secret")) == "No acl config for operator"


ANN = "accounts:\n- {accessKey: annette, secretKey: annes-secret, defaultTopicPerm: PUB}\n"


@pytest.fixture
def more(file: Path) -> Path:
    """A second file, which comes first; its account is in the first one twice, too."""
    found = file.parent / "acl" / "more.yml"
    found.parent.mkdir()
    found.write_text(ANN)
    with file.open("a") as text:
        text.write(2 * ANN.removeprefix("accounts:\n"))
    return found


def test_an_account_is_dropped_from_every_file(more: Path, broker: Broker, file: Path) -> None:
    operator = Operator(broker, None)
    assert why_not(broker, send()) is None
    assert operator.ask(51, accessKey="annette") == (0, None)
    assert why_not(broker, send()) == "No acl config for annette"
    assert "annette" not in more.read_text() + file.read_text()
    assert operator.ask(51, accessKey="annette")[0] == 210


def test_a_changed_account_counts_though_its_file_has_it_twice(more: Path, broker: Broker) -> None:
    more.unlink()
    assert Operator(broker, None).ask(50, accessKey="annette", secretKey="annes-other") == (0, None)
    assert why_not(broker, send(secret="annes-other")) is None


def test_a_change_holds_beside_another_file_that_cannot_be_read(more: Path, broker: Broker, file: Path) -> None:
    more.write_text("accounts: [")
    account: dict[str, Any] = {"accessKey": "bernard", "secretKey": "bernards-secret", "defaultTopicPerm": "PUB"}
    assert Operator(broker, None).ask(50, **account) == (0, None)
    assert why_not(broker, send("bernard", "bernards-secret")) is None
    assert why_not(broker, send()) is None
    before = file.read_bytes()
    code, remark = Operator(broker, None).ask(51, accessKey="annette")
    assert (code, str(more) in (remark or "")) == (210, True)
    assert file.read_bytes() == before


def test_a_system_that_refuses_to_read_or_write_changes_nothing(
    broker: Broker, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(files: LocalFileSystem, path: str, *rest: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    account: dict[str, Any] = {"accessKey": "annette", "secretKey": "annes-secret", "defaultTopicPerm": "PUB"}
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "replace", refused)
        assert Operator(broker, None).ask(50, **account) == (209, f"[Errno 13] Permission denied: '{file}'")
        assert why_not(broker, send()) == "No acl config for annette"
    assert broker.parts.access.plain is not None
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "list_directory", refused)
        broker.parts.access.plain.look()
    assert f"{file.parent}/acl" in caplog.text
    assert why_not(broker, send("operator", "operators-secret")) is None


def test_a_home_without_accounts_or_with_a_file_that_is_none_stops_the_start(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither .*/conf/plain_acl\.yml nor"):
        PlainAccess(str(tmp_path / "elsewhere"))
    file.write_text("accounts: [")
    with pytest.raises(StateFileError, match=r"plain_acl\.yml"):
        PlainAccess(str(tmp_path))


def test_without_the_package_that_reads_them_it_is_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'spark_mq\[acl\]'"):
        PlainAccess(str(tmp_path))
