"""Name servers that a web server lists: which page is read, when, and what becomes of wrong ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from spark_mq.client.address_server import address_server_url, fetch_name_servers
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientSettingError, NameServerUnreachableError
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from tests.client.planned_cluster import PlannedCluster, planned_cluster


class AddressServer:
    """`status` and `text` are what every page holds; `paths` those that were read."""

    def __init__(self) -> None:
        self.status, self.text = 200, ""
        self.paths: list[str] = []
        outer = self

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self.domain = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def page() -> Iterator[AddressServer]:
    server = AddressServer()
    yield server
    server.close()


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a") as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"namesrv_domain": "ns.example"}, "http://ns.example:8080/rocketmq/nsaddr"),
        ({"namesrv_domain": "ns.example:80"}, "http://ns.example:80/rocketmq/nsaddr"),
        (
            {"namesrv_domain": "ns.example", "namesrv_domain_subgroup": "test"},
            "http://ns.example:8080/rocketmq/test",
        ),
        (
            {"namesrv_domain": "ns.example", "unit_name": "u1"},
            "http://ns.example:8080/rocketmq/nsaddr-u1?nofix=1",
        ),
        ({"name_servers": "ns.example:9876"}, None),
    ],
)
def test_the_page_is_that_of_java_s_clients(settings: dict[str, Any], url: str | None) -> None:
    assert address_server_url(ClientSettings(**settings)) == url


def test_a_producer_finds_its_name_server_there(page: AddressServer, cluster: PlannedCluster) -> None:
    page.text = f"{cluster.name_server.address}\r\nnot this line\n"
    settings = ClientSettings(namesrv_domain=page.domain, unit_name="u")
    with Producer(settings, "G") as producer:
        producer.send(Message("T", b"body"))
        assert producer.client_id.startswith("127.0.0.1@")
    assert page.paths == ["/rocketmq/nsaddr-u?nofix=1"]


def test_callers_at_the_start_share_one_look_and_later_looks_change_the_servers(
    page: AddressServer, cluster: PlannedCluster
) -> None:
    page.text = cluster.name_server.address
    instance = ClientInstance.of(ClientSettings(namesrv_domain=page.domain))
    try:
        servers = instance.name_servers
        assert servers.are_looked_up
        for topic in ("T", "T"):
            run(servers.route(topic))
        assert page.paths == ["/rocketmq/nsaddr"]
        page.text = f"127.0.0.1:1;{cluster.name_server.address}"
        run(servers.look_up())
        assert set(servers.addresses) == {"127.0.0.1:1", cluster.name_server.address}
        page.status = 500
        with pytest.raises(NameServerUnreachableError, match="HTTP 500"):
            run(servers.look_up())
        assert len(servers.addresses) == 2  # those of before
        run(servers.route("T"))
    finally:
        instance.release()


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (404, "", "HTTP 404"),
        (204, "", "HTTP 204"),
        (200, "", "it lists no name server"),
        (200, "<html>", "it lists what is no address: '<html>'"),
        (200, "10.0.0.1", "it lists what is no address: '10.0.0.1'"),
    ],
)
def test_a_page_that_lists_none_is_named(page: AddressServer, status: int, text: str, told: str) -> None:
    page.status, page.text = status, text
    with pytest.raises(NameServerUnreachableError) as raised:
        fetch_name_servers(f"http://{page.domain}/rocketmq/nsaddr")
    assert told in str(raised.value)
    assert "/rocketmq/nsaddr" in str(raised.value)


@contextmanager
def serving(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server's domain; `serve` has its one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with listening.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_page_that_trickles_is_given_up_in_time(begin: bytes) -> None:
    has_given_up = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(begin)
        for _ in range(20):
            if has_given_up.wait(0.05):
                return
            connection.sendall(b"1")

    with serving(trickle) as domain:
        with pytest.raises(NameServerUnreachableError, match="timed out"):
            fetch_name_servers(f"http://{domain}/rocketmq/nsaddr", 200)
        has_given_up.set()


def test_a_call_waits_for_a_silent_address_server_no_longer_than_for_others() -> None:
    done = threading.Event()
    with serving(lambda connection: done.wait(10)) as domain:
        instance = ClientInstance.of(ClientSettings(namesrv_domain=domain))
        try:
            told = rf"http://{domain}/rocketmq/nsaddr: the address server gives no page within 100 ms"
            with pytest.raises(NameServerUnreachableError, match=told):
                run(instance.name_servers.route("T", 100))
        finally:
            done.set()
            instance.release()


def test_without_an_address_server_the_first_call_says_where_it_looked() -> None:
    told = r"http://127.0.0.1:1/rocketmq/nsaddr: .*refused"
    with (
        Admin(ClientSettings(namesrv_domain="127.0.0.1:1")) as admin,
        pytest.raises(NameServerUnreachableError, match=told),
    ):
        admin.topics()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "name at least one"),
        ({"name_servers": "a:1", "namesrv_domain": "b"}, "give this or name_servers, not both"),
        ({"namesrv_domain": "http://b"}, "namesrv_domain"),
        ({"namesrv_domain": ""}, "namesrv_domain"),
        ({"namesrv_domain": "b:x"}, "namesrv_domain"),
        ({"namesrv_domain": "b", "namesrv_domain_subgroup": "a/b"}, "namesrv_domain_subgroup"),
        ({"namesrv_domain": "b", "namesrv_domain_subgroup": ""}, "namesrv_domain_subgroup"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ClientSettingError, match=told):
        ClientSettings(**settings)
