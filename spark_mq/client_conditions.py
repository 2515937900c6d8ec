"""Which named condition stands for which error between a client and a cluster, and what a user is told to do."""

from __future__ import annotations

from spark_mq.client import errors
from spark_mq.conditions import ConvertedError, OptionError, SparkMqError
from storage.errors.base import DescribedError


class ClusterConditionError(ConvertedError):
    """An error of the client; the original is its `__context__`."""


_NOT_LOST = "No message is lost by it; failOnDataLoss does not matter here"

_CONDITIONS: dict[type[errors.ClientError], tuple[str, str | None]] = {
    errors.ClientError: ("SPARK_MQ_CLIENT_ERROR", None),
    errors.NameServerUnreachableError: ("SPARK_MQ_NAME_SERVER_UNREACHABLE", None),
    errors.TopicRouteNotFoundError: ("SPARK_MQ_TOPIC_ROUTE_NOT_FOUND", None),
    errors.MessageQueueNotFoundError: ("SPARK_MQ_TOPIC_ROUTE_NOT_FOUND", None),
    errors.BrokerNotFoundError: ("SPARK_MQ_BROKER_UNREACHABLE", _NOT_LOST),
    errors.BrokerUnreachableError: ("SPARK_MQ_BROKER_UNREACHABLE", _NOT_LOST),
    errors.RequestTimeoutError: ("SPARK_MQ_BROKER_UNREACHABLE", _NOT_LOST),
    errors.TlsError: ("SPARK_MQ_TLS_FAILED", None),
    errors.FrameRefusedError: ("SPARK_MQ_ILLEGAL_ANSWER", None),
    errors.MalformedResponseError: ("SPARK_MQ_ILLEGAL_ANSWER", None),
    errors.ResponseError: ("SPARK_MQ_BROKER_REFUSED", None),
    errors.AccessDeniedError: ("SPARK_MQ_BROKER_ACCESS_DENIED", None),
}


_NAME_SERVER_HINT = "check the option nameServer, that a name server runs there, and that this machine reaches it"
_TLS_HINT = (
    "Set tls=true exactly where the server speaks TLS (tls.server.mode). A self-signed certificate needs tlsCaFile, "
    "or tlsVerify=false where that risk is taken"
)


def cluster_condition_names() -> set[str]:
    """Every condition that an error of the client can have."""
    return {condition for condition, _ in _CONDITIONS.values()}


def from_client_error(error: DescribedError) -> SparkMqError:
    """The condition that an error of the client is for a Spark user; it says all that the original does: raise it `from None`."""
    if isinstance(error, errors.ClientSettingError):
        return OptionError(error.setting, error.rule)
    cause = error.cause if isinstance(error, errors.WaitedInVainError) else error
    for base in type(cause).__mro__:
        if base in _CONDITIONS:
            condition, cure = _CONDITIONS[base]
            if isinstance(cause, errors.TlsError):
                hint: str | None = _TLS_HINT
            elif isinstance(cause, errors.NameServerUnreachableError):
                hint = _NAME_SERVER_HINT
            else:
                hint = cause.cure() if isinstance(cause, errors.ResponseError) else cause.hint
            return ClusterConditionError(condition, error.describe(), *(line for line in (hint, cure) if line))
    raise TypeError(f"{type(error).__name__} is no error of the client")
