"""Which named condition stands for which error of a store, and what a user is told to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_mq.conditions import (
    ConvertedError,
    DataLossError,
    SparkMqError,
)
from storage import errors
from storage.files.os_errors import from_os_error


class StoreConditionError(ConvertedError):
    """A storage error; the original is its `__context__`."""


_CONFIGURE = "Name the broker's configuration file in the option conf"


_VERIFY = "`spark-mq verify` shows what else differs"


_PERMISSIVE = (
    "With mode=PERMISSIVE such a message becomes a row with a null body and the reason in the column _corrupt, and the query goes on "
    "from its checkpoint; a new query can also start behind the message (startingOffsets)"
)


_CONDITIONS: dict[type[errors.StorageError], tuple[str, str | None]] = {
    errors.StorageError: ("SPARK_MQ_STORE_ERROR", None),
    errors.ConfigurationError: ("SPARK_MQ_STORE_CONFIGURATION", _CONFIGURE),
    errors.StateFileError: ("SPARK_MQ_STORE_STATE_FILE", None),
    errors.NameIllegalError: ("SPARK_MQ_ILLEGAL_NAME", "Check topic, subscribe, assign and consumerGroup"),
    errors.StoreNotFoundError: ("SPARK_MQ_STORE_NOT_FOUND", "Check the option path"),
    errors.StoreNotSharedError: (
        "SPARK_MQ_STORE_NOT_FOUND",
        "No message is lost by it; failOnDataLoss does not matter here",
    ),
    errors.StoreRefusedError: ("SPARK_MQ_STORE_REFUSED", None),
    errors.ForeignLogError: ("SPARK_MQ_FOREIGN_LOG", None),
    errors.IndexGeometryUnknownError: (
        "SPARK_MQ_INDEX_GEOMETRY_UNKNOWN",
        _CONFIGURE + ", or filter without the option key",
    ),
    errors.AccessDeniedError: ("SPARK_MQ_ACCESS_DENIED", None),
    errors.FileFailedError: ("SPARK_MQ_FILE_FAILED", None),
    errors.FileSystemUnavailableError: ("SPARK_MQ_FILE_SYSTEM_UNAVAILABLE", None),
    errors.StoreLockedError: (
        "SPARK_MQ_STORE_LOCKED",
        "Only commitOffsets and writing need the lock; a sink waits lockTimeout for it",
    ),
    errors.StoreServedError: ("SPARK_MQ_STORE_SERVED", None),
    errors.ReplicasNotEnoughError: ("SPARK_MQ_REPLICAS_NOT_ENOUGH", None),
    errors.NotReplicatedError: ("SPARK_MQ_NOT_REPLICATED", None),
    errors.StoreNotWritableError: ("SPARK_MQ_STORE_NOT_WRITABLE", None),
    errors.StagedRowsGoneError: ("SPARK_MQ_STAGED_ROWS_GONE", None),
    errors.SinkTakenError: ("SPARK_MQ_SINK_TAKEN", None),
    errors.SinkAheadError: ("SPARK_MQ_SINK_AHEAD", None),
    errors.SinkProgressError: ("SPARK_MQ_SINK_PROGRESS", None),
    errors.SliceMismatchError: ("SPARK_MQ_SLICE_MISMATCH", None),
    errors.HalvesGoneError: ("SPARK_MQ_HALVES_GONE", None),
    errors.TopicNotFoundError: ("SPARK_MQ_TOPIC_NOT_FOUND", None),
    errors.TopicChangedError: ("SPARK_MQ_TOPIC_CHANGED", None),
    errors.StoreDamagedError: ("SPARK_MQ_STORE_DAMAGED", None),
    errors.LogFileMissingError: ("SPARK_MQ_LOG_FILE_MISSING", None),
    errors.CorruptRecordError: ("SPARK_MQ_CORRUPT_RECORD", _VERIFY),
    errors.CorruptMessageError: ("SPARK_MQ_CORRUPT_RECORD", _PERMISSIVE),
    errors.ColumnIllegalError: ("SPARK_MQ_SINK_SCHEMA", None),
    errors.MessageIllegalError: ("SPARK_MQ_ILLEGAL_MESSAGE", None),
    errors.PutRefusedError: ("SPARK_MQ_MESSAGE_REFUSED", None),
    errors.RowIllegalError: ("SPARK_MQ_ILLEGAL_ROW", None),
}


def condition_names() -> set[str]:
    """Every condition that an error of this package can have: the one list of them, which docs/errors.md explains."""
    from spark_mq.client_conditions import cluster_condition_names

    kinds = [SparkMqError]
    for kind in kinds:  # grows while it is walked
        kinds += kind.__subclasses__()
    named = {kind.condition for kind in kinds if kind.__module__ in (SparkMqError.__module__, __name__)}
    return named | {condition for condition, _ in _CONDITIONS.values()} | cluster_condition_names()


def from_storage_error(error: errors.StorageError) -> SparkMqError:
    """The condition that a storage error is for a Spark user; it says all that the original does: raise it `from None`.

    An offset out of range is data loss, whoever found it.
    """
    if isinstance(error, errors.OffsetOutOfRangeError):
        return DataLossError(error.describe())
    for base in type(error).__mro__:
        if base in _CONDITIONS:
            condition, cure = _CONDITIONS[base]
            return StoreConditionError(condition, error.describe(), *(line for line in (error.hint, cure) if line))
    raise TypeError(f"{type(error).__name__} is not a storage error")


@contextmanager
def writing_conditions(path: str) -> Iterator[None]:
    """Turns what goes wrong while something is written for the store at `path` into its condition, a full disk among it."""
    try:
        yield
    except errors.StorageError as error:
        raise from_storage_error(error) from None
    except PermissionError as error:
        raise from_storage_error(from_os_error(error, path)) from None
    except OSError as error:
        raise from_storage_error(errors.StoreNotWritableError(path, str(error))) from None
