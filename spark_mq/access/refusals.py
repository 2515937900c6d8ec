"""What access control answers when it refuses."""

from __future__ import annotations

from storage.rules.response_codes import RequestRefusedError, ResponseCode


def refused(remark: str) -> RequestRefusedError:
    """Code 16. Java: AuthenticationException, AuthorizationException."""
    return RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
