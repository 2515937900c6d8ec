"""The accounts of ACL 1.0: their files, followed as they change, and the requests that change them.

    HOME/conf/acl/**/*.yml, *.yaml · HOME/conf/plain_acl.yml       HOME: rocketmqHome, else the environment's ROCKETMQ_HOME

An access key that stands in several files counts in the first, in this order. A file that cannot be read stops the start; later its
change is logged, and what was read before goes on.
Java up to 5.3.2: PlainPermissionManager, AclFileWatchService, AdminBrokerProcessor (50 to 53). Departures: a home without any such file
stops the start; Java makes an empty one, and refuses everybody. An account is dropped from every file; Java leaves it in the others.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from spark_mq.access.plain_acl import (
    Accounts,
    Document,
    check_keys,
    check_rights,
    read_document,
    write_document,
)
from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.requests import Handler, Request
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.administration import (
    AccountKeyRequest,
    AccountRequest,
    AclVersionAnswer,
    WhiteAddressesRequest,
)
from storage.errors import ConfigurationError, StateFileError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.format.typed_json import DataVersion
from storage.rules.response_codes import RequestRefusedError, ResponseCode

LOOK_MS = 5_000
"""Between two looks at the files. Java: AclFileWatchService.WATCH_INTERVAL."""
_LOG = logging.getLogger(__name__)
_EMPTY: Document = {"globalWhiteRemoteAddresses": [], "accounts": [], "dataVersion": []}


class _Seen(NamedTuple):
    """The files as they were read. Replaced whole."""

    versions: Mapping[str, tuple[int, ...] | None]
    documents: Mapping[str, Document]
    accounts: Accounts


class PlainAccess:
    """All accounts as they are now. Thread-safe."""

    def __init__(self, home: str) -> None:
        """Reads the files. Raises StateFileError, ConfigurationError, OSError."""
        self._default, self._directory = f"{home}/conf/plain_acl.yml", f"{home}/conf/acl"
        self._files = LocalFileSystem()
        self._lock = threading.Lock()
        """Held while the files are read or changed."""
        self._seen = self._read()
        if not self._seen.versions:
            rule = f"neither {self._default} nor a file in {self._directory} is there"
            raise ConfigurationError(None, None, "aclEnable", f"{rule}: rocketmqHome or ROCKETMQ_HOME names their home")

    def check(self, command: RemotingCommand, host: str) -> bool:
        """As `Accounts.check`, by the accounts of now."""
        return self._seen.accounts.check(command, host)

    def look(self) -> None:
        """Reads the files again if one has changed, come or gone."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        versions = self._seen.versions
        try:
            versions = self._versions()
            if versions != self._seen.versions:
                self._seen = self._read()
                _LOG.info("the accounts of %s were read again", ", ".join(versions))
        except (StorageError, OSError) as error:
            self._seen = self._seen._replace(versions=versions)
            _LOG.error("the accounts stay as they were read before: %s", error)

    def _versions(self) -> dict[str, tuple[int, ...] | None]:
        paths = [*self._paths(self._directory), self._default]
        versions = {path: self._files.version(path) for path in paths}
        return {path: version for path, version in versions.items() if version is not None}

    def _paths(self, directory: str) -> list[str]:
        found = []
        for entry in self._files.list_directory(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                found += self._paths(path)
            elif entry.name.endswith((".yml", ".yaml")):
                found.append(path)
        return found

    def _read(self) -> _Seen:
        versions = self._versions()
        documents = {path: self._document(path) for path in versions}
        return _Seen(versions, documents, Accounts.of(documents))

    def _document(self, path: str) -> Document:
        try:
            return read_document((self._files.read_file(path) or b"").decode(), path)
        except UnicodeDecodeError as error:
            raise StateFileError(path, error.start, 0, "it is no UTF-8") from None

    def version(self) -> DataVersion:
        """That of conf/plain_acl.yml."""
        return _version(self._seen.documents.get(self._default, _EMPTY))

    def versions(self) -> dict[str, DataVersion]:
        """Those of all files, by path."""
        return {path: _version(document) for path, document in self._seen.documents.items()}

    # Changes. Each stands in its file before it holds.

    def put_account(self, given: Mapping[str, Any], now_ms: int) -> None:
        """Makes an account, in conf/plain_acl.yml, or changes the values that are given. Raises ValueError, StorageError, OSError."""
        check_keys(given.get("accessKey"), given.get("secretKey"))
        for name in ("topicPerms", "groupPerms"):
            check_rights(given.get(name, []))

        def change(document: Document) -> Document:
            accounts = document["accounts"]
            old: Mapping[str, Any] = next(
                (each for each in accounts if each.get("accessKey") == given["accessKey"]), {}
            )
            others = (each for each in accounts if each.get("accessKey") != given["accessKey"])
            return {**document, "accounts": [*others, {**old, **given}]}

        with self._lock:
            self._look()
            self._change([*self._files_of(given["accessKey"]), self._default][:1], change, now_ms)

    def drop_account(self, access_key: str, now_ms: int) -> bool:
        """Drops it from every file. False where there is none. Raises StorageError, OSError."""

        def change(document: Document) -> Document:
            kept = [each for each in document["accounts"] if each.get("accessKey") != access_key]
            return {**document, "accounts": kept}

        with self._lock:
            self._look()
            paths = self._files_of(access_key)
            self._change(paths, change, now_ms)
            return bool(paths)

    def put_white_addresses(self, addresses: list[str], path: str | None, now_ms: int) -> bool:
        """The white addresses of all accounts in one file. False where it is none of those that are followed.

        Raises StateFileError for one that is none, StorageError, OSError.
        """
        path = path or self._default
        with self._lock:
            self._look()
            if path not in self._seen.documents:
                return False
            self._change([path], lambda document: {**document, "globalWhiteRemoteAddresses": addresses}, now_ms)
            return True

    def _files_of(self, access_key: str) -> list[str]:
        documents = self._seen.documents.items()
        return [path for path, each in documents if any(a.get("accessKey") == access_key for a in each["accounts"])]

    def _change(self, paths: list[str], change: Callable[[Document], Document], now_ms: int) -> None:
        changed = {path: _counted(change(self._document(path)), now_ms) for path in paths}
        documents = {**self._seen.documents, **changed}
        accounts = Accounts.of(documents)  # what Java could not read is not written
        for path in reversed(paths):  # what counts is changed last
            self._files.replace(path, write_document(changed[path]).encode())
        versions = {**self._seen.versions, **{path: self._files.version(path) for path in paths}}
        self._seen = _Seen(versions, documents, accounts)


def _counted(document: Document, now_ms: int) -> Document:
    """With its next version."""
    counter = document["dataVersion"][0].get("counter", 0) if document["dataVersion"] else 0
    return {**document, "dataVersion": [{"counter": counter + 1, "timestamp": now_ms}]}


class PlainAccessHandlers:
    """Answers what operators ask of accounts. 54, which shows every secret, is not supported, as by 5.3.2."""

    def __init__(self, plain: PlainAccess, store: BrokerStore) -> None:
        self._plain = plain
        self._store = store

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_ACL_CONFIG: self.put_account,
            code.DELETE_ACL_CONFIG: self.drop_account,
            code.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.put_white_addresses,
        }

    def put_account(self, request: Request) -> RemotingCommand:
        """50; absent fields stay as they are."""
        header: AccountRequest = request.header
        given: dict[str, Any] = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm or None,
            "defaultGroupPerm": header.default_group_perm or None,
            "topicPerms": _split(header.topic_perms),
            "groupPerms": _split(header.group_perms),
        }
        found = {name: value for name, value in given.items() if value is not None}
        with _failing(ResponseCode.POLLING_FULL):
            self._plain.put_account(found, request.now_ms)
        return request.answer()

    def drop_account(self, request: Request) -> RemotingCommand:
        """51."""
        header: AccountKeyRequest = request.header
        with _failing(ResponseCode.POLLING_TIMEOUT):
            if not self._plain.drop_account(header.access_key, request.now_ms):
                remark = f"The accessKey[{header.access_key}] corresponding to accessConfig has been deleted failed."
                raise ValueError(remark)
        return request.answer()

    def version(self, request: Request) -> RemotingCommand:
        """52. Tools from 4.9.3 on fail without the versions of all files, which brokers of 5.x leave out."""
        store = self._store
        header = AclVersionAnswer(
            version=_text(self._plain.version().to_document()),
            all_acl_file_version=_text({path: found.to_document() for path, found in self._plain.versions().items()}),
            broker_name=store.broker_name,
            broker_address=store.address,
            cluster_name=store.service.settings.cluster,
        )
        return request.answer(header=header)

    def put_white_addresses(self, request: Request) -> RemotingCommand:
        """53. Departure: the file must be one of those that are followed; Java takes any in the home."""
        header: WhiteAddressesRequest = request.header
        with _failing(ResponseCode.BROKER_NOT_EXIST):
            addresses = _split(header.global_white_addrs) or []
            if not self._plain.put_white_addresses(addresses, header.acl_file_full_path, request.now_ms):
                raise ValueError(f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed.")
        return request.answer()


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _version(document: Document) -> DataVersion:
    found = document["dataVersion"]
    return DataVersion(found[0].get("counter", 0), found[0].get("timestamp", 0)) if found else DataVersion()


@contextmanager
def _failing(code: ResponseCode) -> Iterator[None]:
    """Java has these codes twice: 209 UPDATE_AND_CREATE_ACL_CONFIG_FAILED, 210 DELETE_…, 211 UPDATE_GLOBAL_WHITE_ADDRS_…"""
    try:
        yield
    except (ValueError, StorageError, OSError) as error:
        raise RequestRefusedError(code, str(error)) from None


def _split(text: str | None) -> list[str] | None:
    """Java: UtilAll.split."""
    return None if text is None else [part for part in text.split(",") if part]
