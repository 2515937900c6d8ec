"""Who may change what a name server knows by an operator's word: this host, and who signs as its administrator.

A name server of Apache's knows no access control. The signature is that of ACL 2.0: tools that have a key put it on all their requests.
"""

from __future__ import annotations

from spark_mq.access.authentication import authenticate
from spark_mq.access.rules import name_and_secret
from spark_mq.access.users import User, UserTable, UserType
from spark_mq.client.settings import Credentials
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting_server.peer import is_this_host
from storage.rules.response_codes import RequestRefusedError, ResponseCode

ADMIN_CODES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
"""What operators ask for: refused to other hosts unless it is signed."""


def check_may_administer(request: RemotingCommand, host: str, administrator: Credentials | None) -> None:
    """Raises RequestRefusedError unless it comes from this host, or is signed by the administrator."""
    if is_this_host(host):
        return
    if administrator is None:
        remark = f"request {request.code} is answered to this host alone: initAuthenticationUser is not set"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
    user = User(administrator.access_key, administrator.secret_key, UserType.SUPER)
    authenticate(UserTable({user.name: user}), request)


def administrator_of(text: str | None) -> Credentials | None:
    """Who a setting `{"username":"…","password":"…"}` names; ValueError with the rule for another text."""
    found = name_and_secret(text, "username", "password")
    return None if found is None else Credentials(*found)
