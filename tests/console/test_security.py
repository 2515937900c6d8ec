"""Who is let in: by the name of the host, by the token, by the form of an own page."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from spark_mq.console.security import Access, is_loopback, refusal
from tests.console.small_store import BASE, OpenConsole

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("127.0.0.1:9877", True),
        ("localhost", True),
        ("[::1]:9877", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:9877", False),
        ("localhost@evil.example", False),
        ("evil.example#localhost", False),
        ("localhost:port", False),
        ("", False),
    ],
)
def test_a_strange_name_of_a_loopback_address_is_refused(host: str, is_answered: bool) -> None:
    access = Access(None, checks_host=True)
    refused = refusal(access, "GET", "/", Headers({"host": host}))
    assert (refused is None) is is_answered
    if refused:
        assert refused[0] == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({"origin": "http://127.0.0.1:9877"}, None),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_a_change_comes_from_an_own_page(headers: dict[str, str], status: int | None) -> None:
    refused = refusal(Access(None, True), "POST", "/x", Headers({"host": "127.0.0.1:9877", **headers}))
    assert (refused and refused[0]) == status


@pytest.mark.parametrize(
    ("site", "mode", "is_answered"),
    [
        (None, None, True),
        ("same-origin", "cors", True),
        ("none", "navigate", True),
        ("cross-site", "navigate", True),
        ("cross-site", "no-cors", False),
        ("same-site", "no-cors", False),
    ],
)
def test_another_sites_page_may_lead_here_and_load_nothing(
    site: str | None, mode: str | None, is_answered: bool
) -> None:
    given = {"host": "127.0.0.1:9877", "sec-fetch-site": site, "sec-fetch-mode": mode}
    headers = Headers({name: value for name, value in given.items() if value is not None})
    refused = refusal(Access(None, True), "GET", "/topic", headers)
    assert (refused is None) is is_answered


@pytest.mark.parametrize("path", ["/", "/topics", "/message", "/dead-letters", "/samples", "/no-page", "/about"])
def test_with_a_token_every_page_needs_it(path: str, root: Path, open_console: OpenConsole) -> None:
    client = open_console(root, token=TOKEN)
    cookie = client.app._app.state.console.access.cookie  # type: ignore[attr-defined]
    refused = client.get(path)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login")
    assert "Orders" not in refused.text
    assert client.get(path, headers={"hx-request": "true"}).status_code == 401
    for wrong in ("", TOKEN[:-1], TOKEN + "x", f"{TOKEN}é"):
        headers = {b"authorization": f"Bearer {wrong}".encode()}
        assert client.get(path, headers=headers).status_code == 303  # type: ignore[arg-type]
        assert client.get(path, headers={b"cookie": f"{cookie}={wrong}".encode()}).status_code == 303  # type: ignore[arg-type]
    assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code != 303


def test_two_consoles_of_a_machine_have_cookies_of_their_own() -> None:
    one, other = Access(TOKEN, True), Access(TOKEN, True)
    assert one.cookie != other.cookie
    assert one.lets_in(Headers({"cookie": f"{other.cookie}=x; {one.cookie}={one.session}"}))
    assert not other.lets_in(Headers({"cookie": f"{one.cookie}={one.session}"}))


def test_a_login_gives_a_cookie_that_is_not_the_token(
    root: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_mq.console.application._PAUSE_S", 0)
    client = open_console(root, token=TOKEN)
    wrong = client.post("/login", data={"token": "wrong"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    assert "That is not the token" in wrong.text
    right = client.post("/login", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    page = client.get("/")
    assert page.status_code == 200
    assert TOKEN not in page.text


def test_every_answer_forbids_scripts_from_elsewhere_frames_and_caches(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root)
    for path in ("/", "/topics", "/no-page", "/login", "/static/console.css", "/message/body?id=1"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_static_files_are_those_of_the_package_alone(root: Path, open_console: OpenConsole) -> None:
    client = open_console(root, token=TOKEN)
    assert client.get("/static/console.js").status_code == 200
    for path in ("/static/../application.py", "/static/%2e%2e/application.py", "/static/..%2f..%2fcli/app.py"):
        assert client.get(f"{BASE}{path}").status_code in (303, 404)
