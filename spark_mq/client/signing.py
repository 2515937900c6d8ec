"""Signed requests: who asks, and the proof. Java: AclClientRPCHook."""

from __future__ import annotations

from spark_mq.client.settings import Credentials
from spark_mq.remoting import HeaderEncoding, RemotingCommand
from spark_mq.remoting.command import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, request_signature


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
    proof = request_signature(command._replace(ext_fields=fields), credentials.secret_key)
    return command._replace(ext_fields={**fields, SIGNATURE: proof})
