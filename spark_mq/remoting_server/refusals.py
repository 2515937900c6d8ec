"""What a server answers where a request cannot be done: the code and remark of whoever refused it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from spark_mq.remoting import ANSWER_HEADERS, BodyError, HeaderError, RemotingCommand, make_response
from storage.errors import ConfigurationError
from storage.rules.response_codes import RequestRefusedError, ResponseCode

_LOG = logging.getLogger(__name__)


def answered(request: RemotingCommand, act: Callable[[], RemotingCommand]) -> RemotingCommand:
    """The answer that `act` makes; where it raises, one that says why: a refusal, what cannot be read, what could not be written."""
    try:
        return act()
    except RequestRefusedError as refusal:
        fields: Mapping[str, str] | None = {} if request.code in ANSWER_HEADERS else None
        return make_response(request, refusal.code, refusal.remark, fields)
    except (HeaderError, BodyError, ConfigurationError) as error:
        return make_response(request, ResponseCode.SYSTEM_ERROR, error.describe())
    except OSError as error:
        _LOG.exception("request %d failed", request.code)
        remark = f"it could not be written: {error.strerror or error}"
        return make_response(request, ResponseCode.SYSTEM_ERROR, remark)


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """To a code that the server does not know, as Java words it."""
    remark = f" request type {request.code} not supported"
    return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
