"""Who has signed a request. Java: DefaultAuthenticationContextBuilder, DefaultAuthenticationHandler."""

from __future__ import annotations

from spark_mq.access.refusals import refused
from spark_mq.access.users import User, UserStatus, UserTable
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.signatures import ACCESS_KEY, is_signed_by

_SHOWN = 255
"""So much of a name is repeated in a remark."""


def authenticate(users: UserTable, command: RemotingCommand) -> User:
    """The enabled user who has signed it. Raises RequestRefusedError with Java's remark where there is none."""
    name = (command.ext_fields or {}).get(ACCESS_KEY)
    if not name:
        raise refused("username cannot be null.")
    user = users.users.get(name)
    if user is None:
        raise refused(f"User:{name[:_SHOWN]} is not found.")
    if user.status is UserStatus.DISABLE:
        raise refused(f"User:{name[:_SHOWN]} is disabled.")
    if not is_signed_by(command, user.password):
        raise refused("check signature failed.")
    return user
