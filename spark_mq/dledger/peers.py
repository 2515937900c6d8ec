"""The members of a group as a configuration names them: `n0-host:port;n1-host:port`. Java: DLedgerConfig, MemberState.loadPeers."""

from __future__ import annotations

import re
from typing import NamedTuple

from storage.names import address_text, split_address

_PEER = re.compile(r"(?P<id>[A-Za-z0-9_.]+)-(?P<address>\S+)")
"""An id stands in the name of a directory, and in `currterm`."""


class Peer(NamedTuple):
    """A member as the others reach it."""

    peer_id: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`."""
        return address_text(self.host, self.port)


def parse_peers(text: str) -> tuple[Peer, ...]:
    """All members, each once; none for an empty text. Raises ValueError with the rule."""
    peers = tuple(_peer(part.strip()) for part in text.split(";") if part.strip())
    ids, addresses = {each.peer_id for each in peers}, {each.address for each in peers}
    if not len(ids) == len(addresses) == len(peers):
        raise ValueError("each id and each address stands there once")
    return peers


def _peer(text: str) -> Peer:
    found = _PEER.fullmatch(text)
    if found is None:
        raise ValueError("a peer is id-host:port, and an id has letters, digits, _ and . alone")
    return Peer(found["id"], *split_address(found["address"]))
