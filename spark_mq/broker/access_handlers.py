"""Requests to create, change, delete and list users and their permissions.

Java: AdminBrokerProcessor (3001 to 3010), AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl. Departures:
Answers contain no passwords. If requests are signed, a request with a wrong signature does not count as a SUPER user's. Java trusts the
user name in the request, and also a request without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_mq.access.acls import FILE_NAME as ACLS_FILE
from spark_mq.access.acls import AclTable, PolicyType, acl_info, matching, parse_resource, read_acl
from spark_mq.access.users import FILE_NAME as USERS_FILE
from spark_mq.access.users import (
    AccessRules,
    User,
    UserStatus,
    UserTable,
    UserType,
    authenticate,
    by_name,
    refused,
    subject_of,
    user_info,
    user_name,
)
from spark_mq.broker.plain_access import PlainAccess
from spark_mq.broker.requests import Handler, Request
from spark_mq.remoting import RemotingCommand, RequestCode, read_body, write_body_list
from spark_mq.remoting.administration import (
    AclFilterRequest,
    AclInfo,
    AclRequest,
    DeleteAclRequest,
    UserFilterRequest,
    UserInfo,
    UserRequest,
)
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.service.put_service import PutService

_BLANK = "The username is blank"


class AccessEntries:
    """A broker's users and what they may do, as they are now; each change stands in its file before it holds.

    Passwords stand there as they are, so the owner of the store alone may read the files (0600). Thread-safe: a table is
    replaced whole. Java: AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl.
    """

    def __init__(self, service: PutService, rules: AccessRules) -> None:
        """Reads them, and makes the rules' first users. Raises StateFileError, ConfigurationError, OSError."""
        self._store = service.store
        self.rules = rules
        self.plain = None if rules.plain_home is None else PlainAccess(rules.plain_home)
        """ACL 1.0, where it is on."""
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
        """Whether a SUPER user has signed the request; without authentication, any request counts."""
        if not self.rules.authenticates:
            return True
        try:
            return authenticate(self.users, command).is_super
        except RequestRefusedError:
            return False


class AccessHandlers:
    """Answers what operators ask of users and their rights."""

    def __init__(self, access: AccessEntries) -> None:
        self._access = access

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.AUTH_CREATE_USER: self.create_user,
            code.AUTH_UPDATE_USER: self.update_user,
            code.AUTH_DELETE_USER: self.delete_user,
            code.AUTH_GET_USER: self.user,
            code.AUTH_LIST_USER: self.users,
            code.AUTH_CREATE_ACL: self.update_acl,
            code.AUTH_UPDATE_ACL: self.update_acl,
            code.AUTH_DELETE_ACL: self.delete_acl,
            code.AUTH_GET_ACL: self.acl,
            code.AUTH_LIST_ACL: self.acls,
        }

    # Users

    def create_user(self, request: Request) -> RemotingCommand:
        """3001."""
        name, info, kind = self._user_info(request, "create")
        if not (info.password or "").strip():
            raise refused("password can not be blank")
        status = by_name(UserStatus, info.user_status) or UserStatus.ENABLE
        user = User(name, info.password or "", kind or UserType.NORMAL, status)

        def create(users: UserTable) -> UserTable:
            if name in users.users:
                raise refused("The user is existed")
            return users.with_user(user)

        self._access.change_users(create)
        return request.answer()

    def update_user(self, request: Request) -> RemotingCommand:
        """3002; absent fields stay as they are."""
        name, info, kind = self._user_info(request, "update")
        status = by_name(UserStatus, info.user_status)

        def update(users: UserTable) -> UserTable:
            user = users.users.get(name)
            if user is None:
                raise refused("The user is not exist")
            self._refuse_others(request, user)
            password = info.password if (info.password or "").strip() else None
            return users.with_user(
                replace(user, password=password or user.password, type=kind or user.type, status=status or user.status)
            )

        self._access.change_users(update)
        return request.answer()

    def _user_info(self, request: Request, verb: str) -> tuple[str, UserInfo, UserType | None]:
        header: UserRequest = request.header
        if not header.username:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, _BLANK)
        info = read_body(UserInfo, request.body)
        kind = by_name(UserType, info.user_type)
        if kind is UserType.SUPER and not self._access.is_by_super_user(request.command):
            remark = f"The super user can only be {verb} by super user"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        if not header.username.strip():
            raise refused("username can not be blank")
        return header.username, info, kind

    def _refuse_others(self, request: Request, user: User) -> None:
        if user.is_super and not self._access.is_by_super_user(request.command):
            raise refused("The super user can only be update by super user")

    def delete_user(self, request: Request) -> RemotingCommand:
        """3003, with what he may do; nothing to delete is no error."""
        header: UserRequest = request.header
        name = header.username or ""
        if not name.strip():
            raise refused("username can not be blank")

        def delete(users: UserTable) -> UserTable:
            user = users.users.get(name)
            if user is None:
                return users
            self._refuse_others(request, user)
            self._access.change_acls(lambda acls: acls.without_subject(subject_of(name)))
            return users.without_user(name)

        self._access.change_users(delete)
        return request.answer()

    def user(self, request: Request) -> RemotingCommand:
        """3004; no body where there is none of that name."""
        header: UserRequest = request.header
        name = header.username or ""
        if not name.strip():
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, _BLANK)
        user = self._access.users.users.get(name)
        return request.answer() if user is None else request.answer(body=user_info(user))

    def users(self, request: Request) -> RemotingCommand:
        """3005."""
        header: UserFilterRequest = request.header
        wanted = (header.filter or "").strip()
        found = [user_info(user) for name, user in self._access.users.users.items() if wanted in name]
        return request.answer(body=write_body_list(found) if found else b"")

    # What they may do

    def update_acl(self, request: Request) -> RemotingCommand:
        """3006, 3007: entries are made, and replace those of their resources."""
        header: AclRequest = request.header
        info = read_body(AclInfo, request.body) if request.body else AclInfo()
        if not info.policies:
            raise refused("The body of acl is null")
        subject, policies = read_acl(info, header.subject)

        def update(acls: AclTable) -> AclTable:
            if user_name(subject) not in self._access.users.users:
                raise refused(f"The subject of {subject} is not exist.")
            return acls.with_entries(subject, policies)

        self._access.change_acls(update)
        return request.answer()

    def delete_acl(self, request: Request) -> RemotingCommand:
        """3008: one resource's entry, or all that the subject has.

        Departure: a resource that is none is refused. Java deletes everything then.
        """
        header: DeleteAclRequest = request.header
        subject = self._known_subject(header.subject)
        kind = by_name(PolicyType, header.policy_type) or PolicyType.CUSTOM
        resource = parse_resource(header.resource)
        if resource is None and (header.resource or "").strip():
            raise refused("The resource is null.")

        def delete(acls: AclTable) -> AclTable:
            if subject not in acls.acls:
                raise refused("The acl is not exist.")
            if resource is None:
                return acls.without_subject(subject)
            return acls.without_entry(subject, kind, resource)

        self._access.change_acls(delete)
        return request.answer()

    def acl(self, request: Request) -> RemotingCommand:
        """3009; no body where the user may do nothing."""
        header: AclRequest = request.header
        subject = self._known_subject(header.subject)
        policies = self._access.acls.acls.get(subject)
        return request.answer() if policies is None else request.answer(body=acl_info(subject, policies))

    def _known_subject(self, subject: str | None) -> str:
        name = user_name(subject)
        if name is None:
            raise refused("The subject is null.")
        if name not in self._access.users.users:
            raise refused("The subject is not exist.")
        return subject_of(name)

    def acls(self, request: Request) -> RemotingCommand:
        """3010."""
        header: AclFilterRequest = request.header
        found = matching(
            self._access.acls, (header.subject_filter or "").strip(), (header.resource_filter or "").strip()
        )
        return request.answer(body=write_body_list(found) if found else b"")
