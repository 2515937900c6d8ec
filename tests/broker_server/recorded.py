"""A conversation of honest clients with a broker that runs, and the requests that they made: at least one of each code."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from spark_mq.remoting import RemotingCommand
from tests.broker.conversation import Conversation
from tests.broker.peers import SocketPeers
from tests.broker_server.hostile_requests import by_code
from tests.broker_server.own_cluster import OwnCluster

_REPLY = dict(
    zip("abcdefghijklm", ("g", "own_REPLY_TOPIC", "TBW102", 4, 0, 0, 0, 0, "", 0, "false", 16, "false"), strict=True)
)


class RecordingPeers(SocketPeers):
    """Clients whose requests are kept."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.commands: list[RemotingCommand] = []

    def _start(self, client: str, command: RemotingCommand) -> Future[RemotingCommand]:
        self.commands.append(command)
        return super()._start(client, command)


def honest_commands(cluster: OwnCluster, peers: RecordingPeers) -> Mapping[int, list[RemotingCommand]]:
    """What clients have asked, by code. The peers stay connected: the broker may ask them."""
    Conversation(peers, cluster.port).all()
    peers.ask("admin", 28)
    peers.ask("admin", 43)
    peers.ask("admin", 324, _REPLY, b"answer")
    return by_code(peers.commands)
