"""Who may change what a name server knows by an operator's word: this host, and who signs as its administrator.

A name server of Apache's knows no access control. The signature is that of ACL 2.0: tools that have a key put it on all their requests.
"""

from __future__ import annotations

import hmac
import json

from spark_mq.client.settings import Credentials
from spark_mq.client.signing import ACCESS_KEY, SIGNATURE, signed
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
    _check_signature(request, administrator)


def administrator_of(text: str | None) -> Credentials | None:
    """Who a setting `{"username":"…","password":"…"}` names; ValueError with the rule for another text."""
    if not text:
        return None
    try:
        found = json.loads(text)
        name, password = found["username"], found["password"]
    except (ValueError, KeyError, TypeError):
        name = password = None
    if not isinstance(name, str) or not isinstance(password, str) or not name or not password:
        raise ValueError('it must be {"username":"…","password":"…"}')
    return Credentials(name, password)


def _check_signature(request: RemotingCommand, user: Credentials) -> None:
    """As a broker's access control: who it is, and the proof. Raises RequestRefusedError."""
    fields = request.ext_fields or {}
    name = fields.get(ACCESS_KEY)
    if not name:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, "username cannot be null.")
    if name != user.access_key:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"User:{name[:64]} is not found.")
    expected = (signed(request, user).ext_fields or {})[SIGNATURE]
    if not hmac.compare_digest(expected.encode(), fields.get(SIGNATURE, "").encode("utf-8", "replace")):
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, "check signature failed.")
