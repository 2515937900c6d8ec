"""Who is let in, and what a browser may do with a page.

    Host          on a loopback address only its own names, so that another site's name that leads to 127.0.0.1 gets nothing
    token         with one, every page but the login and the static files needs it: in a cookie, or as `Authorization: Bearer`
    form          a change needs the number that only pages of this process hold (CSRF), and comes from this origin
    other sites   their pages may lead to a page of the console, and load none into their own (pictures, scripts, requests)
    page          scripts, styles and pictures of this server alone; in no frame; no guessing of types; kept in no cache

Times of comparisons say nothing about the token. The cookie holds a number of this process, not the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from storage.names import plain_host

LOGIN, STATIC = "/login", "/static/"
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer browsers call the origin of a form null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SAME_SITE = (None, "same-origin", "none")
"""Of Sec-Fetch-Site: an older browser says nothing, and `none` is an address that a person typed."""


def is_loopback(host: str) -> bool:
    """Whether a host, a name or an address, is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(plain_host(host)).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets of a process. `token` None: no token is needed."""

    token: str | None
    checks_host: bool
    """Whether only a loopback name may stand in the header Host."""
    cookie: str = field(default_factory=lambda: f"spark_mq_console_{secrets.token_hex(4)}")
    """The cookie's name. Cookies do not know of ports: another console of the machine has a cookie of its own."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def is_token(self, given: str) -> bool:
        return self.token is not None and _same(given, self.token)

    def is_form(self, given: str) -> bool:
        """Whether a form was on a page of this process."""
        return _same(given, self.form)

    def lets_in(self, headers: Headers) -> bool:
        """Whether the request has the token, or needs none."""
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return _same(_cookie(headers, self.cookie), self.session)

    def login(self, response: Response) -> None:
        """Let the browser in that gets this answer."""
        response.set_cookie(self.cookie, self.session, httponly=True, samesite="strict", path="/")


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def _cookie(headers: Headers, name: str) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return ""
    return jar[name].value if name in jar else ""


def refusal(access: Access, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
    """Status and reason of a request that is not answered; None for the others. Status 303: it needs the login first."""
    host = headers.get("host", "")
    if access.checks_host and not is_loopback(urlsplit(f"//{host}").hostname or "" if _is_host(host) else ""):
        return (
            421,
            "This console answers on its loopback address alone: open it as http://127.0.0.1 or http://localhost.",
        )
    if method not in ("GET", "HEAD") and not _is_own_origin(headers, host):
        return 403, "A change must come from a page of this console."
    if headers.get("sec-fetch-site") not in _SAME_SITE and headers.get("sec-fetch-mode") != "navigate":
        return 403, "A page of another site may lead here, and load nothing from here."
    if path.startswith(STATIC) or path == LOGIN or access.lets_in(headers):
        return None
    return 303, "The console needs its token."


def _is_host(host: str) -> bool:
    """Whether it is a name or an address with or without a port; `port` raises for another end."""
    try:
        urlsplit(f"//{host}").port  # noqa: B018
    except ValueError:
        return False
    return not set(host) & set("/?#@\\")


def _is_own_origin(headers: Mapping[str, str], host: str) -> bool:
    origin = headers.get("origin")
    try:
        if origin is not None and urlsplit(origin).netloc != host:
            return False
    except ValueError:  # no address at all
        return False
    return headers.get("sec-fetch-site") in _SAME_SITE


class Guard:
    """The application behind those rules."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # nothing else is answered
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        refused = refusal(self._access, scope["method"], scope["path"], headers)
        if refused is None:
            await self._app(scope, receive, guarded)
            return
        status, reason = refused
        answer: Response = PlainTextResponse(reason, 401 if status == 303 else status)
        if status == 303 and scope["method"] == "GET" and "hx-request" not in headers:
            answer = RedirectResponse(LOGIN, 303)
        await answer(scope, receive, guarded)
