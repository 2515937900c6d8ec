"""What a browser would make of a page: its tags with their attributes, and its text."""

from __future__ import annotations

from html.parser import HTMLParser

STATIC = "/static/"


class Structure(HTMLParser):
    """Of one page. Raises AssertionError for what may run, or come from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        """Each tag, and the names of its attributes."""
        self.text = ""
        self.links: list[str] = []
        """Where links lead."""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("a", "b", "code", "span", "strong"):
            self.text += "\n"
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
            if name in ("src", "href", "action", "hx-get", "hx-post", "data-samples"):
                assert value is not None
                assert value.startswith(("/", "#")), value
                assert not value.startswith("//"), value
                if tag == "a":
                    self.links.append(value)
        if tag == "script":
            assert dict(attrs)["src"].startswith(STATIC)  # type: ignore[union-attr]
        assert tag not in ("style", "iframe", "object", "embed", "base")

    def handle_data(self, data: str) -> None:
        self.text += data
