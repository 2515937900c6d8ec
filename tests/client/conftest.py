"""Clients that are closed with their test; and a test that is a coroutine is played in virtual time,
or in real time where its module says `PLAY = asyncio.run`.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from tests.client.virtual_time import play
from tests.support.planned_server import Certificate

MakeClient = Callable[..., RemotingClient]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    getattr(pyfuncitem.module, "PLAY", play)(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def in_a_child(check: Callable[[], object]) -> None:
    """What `check` asserts holds in a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """A remoting client of given settings."""
    made: list[RemotingClient] = []

    def make(**settings: Any) -> RemotingClient:
        async def construct() -> RemotingClient:
            return RemotingClient(ClientSettings(**{"name_servers": ("127.0.0.1:9876",), **settings}))

        made.append(run(construct()))
        return made[-1]

    yield make
    for client in made:
        run(client.close())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate of this host."""
    return Certificate(tmp_path_factory.mktemp("certificate-"))
