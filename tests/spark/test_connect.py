"""The source and the sink by Spark Connect: the session is a client, and a server that it starts plans and runs the queries.

Paths are absolute: Spark runs its Python processes in a directory of the session, so a relative one would lie there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.fixture_stores import Fixture
from tests.support.python_script import run_script

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("grpc") is None, reason="needs the extra connect"),
]

SCRIPT = """
import json, os
import spark_mq
from pyspark.errors import PySparkException

path, written, copy = {path!r}, os.path.abspath("written"), os.path.abspath("copy")
spark = spark_mq.build_session("test", config={{"spark.remote": "local[2]"}})
told = {{"session": type(spark).__module__}}
def read(place, **options):
    return spark.read.format("spark_mq").options(**options).load(place)
told["read"] = read(path, topic="TopicA").count()

rows = spark.range(100).selectExpr("CAST(id AS STRING) AS body")
for _ in range(2):
    rows.write.format("spark_mq").mode("append").options(topic="T", writeId="one").save(written)
told["written"] = read(written, topic="T").count()

stream = spark.readStream.format("spark_mq").options(topic="TopicA", startingOffsets="earliest").load(path)
def copied():
    writer = stream.select("body").writeStream.format("spark_mq").options(topic="C", checkpointLocation=os.path.abspath("checkpoint"))
    query = writer.trigger(availableNow=True).start(copy)
    query.awaitTermination()
    told.setdefault("lag", spark_mq.total_lag(spark_mq.queue_lags(query.lastProgress)))
    return read(copy, topic="C").count()
told["copied"] = [copied(), copied()]

try:
    read(path, topik="T").collect()
except PySparkException as error:
    told["refused"] = str(error)
print("TOLD", json.dumps(told))
spark.stop()
"""


@pytest.mark.long
def test_source_and_sink_work_by_spark_connect(tmp_path: Path, pristine_store: Callable[[str], Fixture]) -> None:
    store = pristine_store("clean")
    ran = run_script(SCRIPT.format(path=str(store.root)), tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("TOLD "))
    told = json.loads(line.removeprefix("TOLD "))
    assert ".connect." in told["session"]
    assert (told["read"], told["written"], told["copied"], told["lag"]) == (600, 100, [600, 600], [0, 0, 0])
    assert "SPARK_MQ_UNKNOWN_OPTION" in told["refused"]
