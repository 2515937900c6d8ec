"""The proof that a request comes from who knows a secret: made by clients, compared by servers.

HMAC-SHA1 over the values of all extFields but the signature, in the order of their names, then the body, as base64.
Java: AclUtils, AclSigner (ACL 1.0 and 2.0).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import Body, RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Says that the key of a query is a unique one; Java: MixAll.UNIQUE_MSG_QUERY_FLAG."""


def signature(fields: Mapping[str, str], body: Body, secret_key: str) -> str:
    """That of these fields and this body."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode("utf-8", "replace")
    digest = hmac.digest(secret_key.encode("utf-8", "replace"), content + body if body else content, "sha1")
    return base64.b64encode(digest).decode("ascii")


def request_signature(command: RemotingCommand, secret_key: str) -> str:
    """That of a request, which has everything in its fields but the signature.

    Servers of 4.9 leave `_UNIQUE_KEY_QUERY` out of what is signed, later ones only for such a request.
    """
    fields = command.ext_fields or {}
    if command.version <= ProtocolVersion.V4_9_3:
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return signature(fields, command.body, secret_key)


def is_signed_by(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the request has the signature that the secret makes; how long it takes says nothing of it.

    Departure: in the ROCKETMQ encoding a field without a value counts as "", which is what clients sign. Java signs "null".
    """
    given = (command.ext_fields or {}).get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(request_signature(command, secret_key).encode(), given)
