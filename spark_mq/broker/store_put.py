"""Doing what a plan says: by the store itself, or by whoever stands in front of it. Java: MessageStore.asyncPutMessage."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_mq.broker.put_plan import PutPlan
from spark_mq.broker.put_response import Appended, PutOutcome
from storage.errors import MessageIllegalError, StoreNotWritableError
from storage.message_store import MessageStore
from storage.put_status import PutStatus

_LOG = logging.getLogger(__name__)

Put = Callable[[PutPlan], PutOutcome]


def put_into(store: MessageStore) -> Put:
    """The put of a store that is open for writing."""

    def put(plan: PutPlan) -> PutOutcome:
        try:
            places = store.put_inner(plan.messages)
        except MessageIllegalError as error:
            is_of_properties = error.what == "properties"
            status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_of_properties else PutStatus.MESSAGE_ILLEGAL
            return PutOutcome(status, reason=str(error))
        except StoreNotWritableError as error:
            return PutOutcome(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
        except OSError as error:  # a part may stand in the log; nobody may take that for stored
            _LOG.exception("a put into %s failed", store.root)
            return PutOutcome(PutStatus.UNKNOWN_ERROR, reason=str(error))
        return PutOutcome(PutStatus.PUT_OK, Appended.of(places, plan.size_bytes))

    return put
