"""Where a broker is now, asked of the name servers by a task: it may have moved since the task was planned."""

from __future__ import annotations

from dataclasses import replace

from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.source.cluster_questions import ClusterQuestions
from spark_mq.source.live_topics import Addresses, addresses_of


def addresses_now(broker_name: str, settings: ClientSettings, timeout_ms: int) -> Addresses:
    """The broker's addresses by broker id; none where no name server tells in time. The time is shared among them."""
    share_ms = max(timeout_ms // (2 * len(settings.name_servers)), 1)  # each is connected to, then asked
    hurried = replace(
        settings,
        connect_timeout_ms=min(settings.connect_timeout_ms, share_ms),
        request_timeout_ms=min(settings.request_timeout_ms, share_ms),
    )
    questions = ClusterQuestions(hurried)
    try:
        return addresses_of(questions.cluster_info()).get(broker_name, {})
    except ClientError:  # the error of the pull is the one to tell
        return {}
    finally:
        questions.close()
