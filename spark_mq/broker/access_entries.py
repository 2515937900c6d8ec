"""A broker's users and what they may do, as they are now; each change stands in its file before it holds.

Passwords stand there as they are, so the owner of the store alone may read the files (0600).

Java: AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_mq.access.acls import FILE_NAME as ACLS_FILE
from spark_mq.access.acls import AclTable
from spark_mq.access.authentication import authenticate
from spark_mq.access.rules import AccessRules
from spark_mq.access.users import FILE_NAME as USERS_FILE
from spark_mq.access.users import UserTable
from spark_mq.remoting import RemotingCommand
from storage.rules.response_codes import RequestRefusedError
from storage.service.put_service import PutService


class AccessEntries:
    """Both tables of a store. Thread-safe: a table is replaced whole."""

    def __init__(self, service: PutService, rules: AccessRules) -> None:
        """Reads them, and makes the rules' first users. Raises StateFileError, OSError."""
        self._store = service.store
        self.rules = rules
        for name in (USERS_FILE, ACLS_FILE):
            for ending in ("", ".bak", ".bad"):
                service.store.writer.file_system.make_private(f"{service.root}/config/{name}{ending}")
        self.users = service.state(USERS_FILE, UserTable.load) or UserTable()
        self.acls = service.state(ACLS_FILE, AclTable.load) or AclTable()
        self.change_users(self._with_first_users)

    def _with_first_users(self, users: UserTable) -> UserTable:
        for user in self.rules.first_users:
            users = users if user.name in users.users else users.with_user(user)
        return users

    def change_users(self, change: Callable[[UserTable], UserTable]) -> None:
        """Gives the table that `change` makes of it; what that raises comes out. Raises OSError."""
        with self._store.tables_lock:
            changed = change(self.users)
            if changed is not self.users:
                self._store.save_state(USERS_FILE, changed.to_text(), is_private=True)
                self.users = changed

    def change_acls(self, change: Callable[[AclTable], AclTable]) -> None:
        """As `change_users`, of what they may do."""
        with self._store.tables_lock:
            changed = change(self.acls)
            if changed is not self.acls:
                self._store.save_state(ACLS_FILE, changed.to_text(), is_private=True)
                self.acls = changed

    def is_by_super_user(self, command: RemotingCommand) -> bool:
        """Whether a SUPER user has signed the request; where nobody has to sign, any request counts."""
        if not self.rules.authenticates:
            return True
        try:
            return authenticate(self.users, command).is_super
        except RequestRefusedError:
            return False
