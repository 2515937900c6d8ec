"""The application: its addresses, and errors as pages.

    /                overview            /groups /group /samples             who is behind
    /topics /topic   topics, messages    /dead-letters /dead-letters/…  dead letters
    /message …       one message         /transactions /timers /sinks /archive

Pages are made in threads: stores and clients wait. `open_console` makes the application of a command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from spark_mq.conditions import OptionError, SparkMqError
from spark_mq.console import message_pages, work_pages
from spark_mq.console.pages import Console, console_of, page
from spark_mq.console.security import LOGIN, STATIC, Guard
from spark_mq.console.views import BusyError, MissingError, NotThereError
from spark_mq.session import SESSION_ERRORS
from spark_mq.terminal import CommandError, UsageError, describe
from storage.errors import DescribedError, NameIllegalError

_PAUSE_S = 1.0
"""After a wrong token."""


def application(console: Console) -> ASGIApp:
    """The console as an ASGI application. It starts the samples, and at its end closes all that it has."""

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        console.samples.start()
        try:
            yield
        finally:
            await asyncio.to_thread(close, console)

    routes = [
        Route("/", work_pages.overview),
        Route("/topics", message_pages.topics),
        Route("/topic", message_pages.topic),
        Route("/message", message_pages.message),
        Route("/message/body", message_pages.body),
        Route("/message/related", message_pages.related),
        Route("/groups", work_pages.groups),
        Route("/group", work_pages.group),
        Route("/samples", work_pages.samples),
        Route("/dead-letters", work_pages.dead_letters),
        Route("/dead-letters/preview", work_pages.preview, methods=["POST"]),
        Route("/dead-letters/replay", work_pages.replay, methods=["POST"]),
        Route("/dead-letters/run", work_pages.replay_run),
        Route("/transactions", work_pages.transactions),
        Route("/timers", work_pages.timers),
        Route("/sinks", work_pages.sinks),
        Route("/archive", work_pages.archive),
        Route("/about", about),
        Route(LOGIN, login_page),
        Route(LOGIN, login, methods=["POST"]),
        Mount(STATIC.rstrip("/"), StaticFiles(packages=[("spark_mq.console", "static")])),
    ]
    made = Starlette(
        routes=routes, lifespan=life, exception_handlers={HTTPException: _not_there, Exception: _unexpected}
    )
    made.state.console = console
    for kind in _EXPECTED:
        made.add_exception_handler(kind, _described)
    return Guard(made, console.access)


def close(console: Console) -> None:
    """End the threads, and let go of stores and brokers."""
    console.samples.close()
    console.replays.close()
    console.views.close()


def about(request: Request) -> Response:
    """What the console is made of, and its licences."""
    return page(request, "about.html")


def login_page(request: Request) -> Response:
    """Asks for the token."""
    return page(request, "login.html", is_wrong=False)


async def login(request: Request) -> Response:
    """Compares the token."""
    access = console_of(request).access
    asked = await work_pages.form_of(request)
    if access.token is not None and not access.is_token(asked.text("token") or ""):
        await asyncio.sleep(_PAUSE_S)
        return page(request, "login.html", status=403, is_wrong=True)
    answer = RedirectResponse("/", 303)
    access.login(answer)
    return answer


# Errors

_BROKEN = 502
"""A store or a broker does not give what the page needs."""
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (BusyError, 503),
    (MissingError, _BROKEN),
    (NotThereError, 404),
    (work_pages.ForbiddenError, 403),
    (UsageError, 400),
    (OptionError, 400),
    (NameIllegalError, 400),
    (CommandError, 404),
)
_EXPECTED = (CommandError, DescribedError, SparkMqError, OSError, *SESSION_ERRORS)


async def _described(request: Request, error: Exception) -> Response:
    """An error that a user can act on, as a page."""
    described = describe(error)
    if described is None:
        raise error
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), _BROKEN)
    return page(request, "error.html", status=status, text=described.text, hint=described.hint)


async def _not_there(request: Request, error: Exception) -> Response:
    """Starlette's own: no such page, or no such method."""
    assert isinstance(error, HTTPException)
    return page(request, "error.html", status=error.status_code, text=str(error.detail), hint=None)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A mistake of the console: the server logs it, the page does not show it."""
    text = "This page has failed; the log of the console says why."
    return page(request, "error.html", status=500, text=text, hint=None)
