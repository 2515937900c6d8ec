"""Signed requests: who asks, and the proof. Java: AclClientRPCHook, AclUtils, AclSigner (ACL 1.0 and 2.0)."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from spark_mq.client.settings import Credentials
from spark_mq.remoting import Body, HeaderEncoding, RemotingCommand
from spark_mq.remoting.codes import ProtocolVersion

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Says that the key of a query is a unique one; Java: MixAll.UNIQUE_MSG_QUERY_FLAG."""


def signed(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """The request with access key, token and signature among its fields; a signature that it had is replaced.

    In the ROCKETMQ encoding fields without a value are left out: a server reads null from them and signs the word "null", so that
    it refuses what Java's client signs.
    """
    is_empty_null = command.encoding is HeaderEncoding.ROCKETMQ
    given = (command.ext_fields or {}).items()
    fields = {name: value for name, value in given if name != SIGNATURE and (value or not is_empty_null)}
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    proven = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY} if _is_old(command) else fields
    return command._replace(ext_fields={**fields, SIGNATURE: signature(proven, command.body, credentials.secret_key)})


def _is_old(command: RemotingCommand) -> bool:
    """Whether servers leave `_UNIQUE_KEY_QUERY` out of what is signed. Those of 4.9 always do, later ones for such a request."""
    return command.version <= ProtocolVersion.V4_9_3


def signature(fields: Mapping[str, str], body: Body, secret_key: str) -> str:
    """HMAC-SHA1 over the values in the order of their names, then the body, as base64."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode("utf-8", "replace")
    digest = hmac.digest(secret_key.encode(), content + body if body else content, "sha1")
    return base64.b64encode(digest).decode("ascii")
