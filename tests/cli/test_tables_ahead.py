"""A log that ends before what its tables count, and who opens the store first: nothing that is written from then on is passed over.

A power loss under ASYNC_FLUSH, a repair or a restored log leave such a store: here log and queues are those of a copy that was made
before the rest was written, consumed and delivered.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.broker_server.opening import opened_service
from spark_mq.broker_server.settings import read_configuration
from spark_mq.cli import app
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.timer import TimerCheckpoint
from storage.message_store import MessageStore
from storage.messages.delays import TIMER_TOPIC
from storage.messages.half_messages import HALF_TOPIC
from storage.messages.inner_messages import InnerMessage
from storage.messages.op_messages import OP_TOPIC
from storage.place.followed_master import note_followed_master
from storage.tables.consumer_offsets import ConsumerOffsets
from storage.tables.followed_timer import FollowedTimer, followed_timer_path, read_followed_timer
from storage.tables.timer_checkpoint import read_timer_checkpoint, write_timer_checkpoint
from tests.oracle_marks import ORACLE
from tests.support.java_broker import Oracle
from tests.support.ways_in import WRITING
