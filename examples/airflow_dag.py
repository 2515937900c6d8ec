"""An Airflow DAG whose tasks are the jobs of a store that no broker serves. Copy it into Airflow's folder of DAGs.

The workers need spark_mq and must see the store. A job that finds the store taken by a broker or another job exits with 75: the task is
skipped, and the next run does the work. Each job may be killed and repeated. No job waits for another: a skipped one keeps none back.

Dead letters are not chosen by time, so what a skipped run has left is in the next one; each is replayed once. Their copies go to the
failing group alone (`--to retry`). A copy that fails again becomes a new dead letter, and is replayed by a later run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

STORE = "{{ var.value.get('rocketmq_store', '/var/lib/rocketmq/store') }}"
BUSY = 75


def job(name: str, options: str = "") -> BashOperator:
    return BashOperator(task_id=name, bash_command=f"spark-mq job {name} '{STORE}' {options}", skip_on_exit_code=BUSY)


SETTINGS = {
    "start_date": datetime(2026, 1, 1),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {"retries": 2, "retry_delay": timedelta(minutes=1)},
    "tags": ["rocketmq"],
}

with DAG("rocketmq_deliveries", schedule=timedelta(minutes=1), **SETTINGS) as deliveries:
    job("deliver_delayed", "--lock-timeout 30s")

with DAG("rocketmq_upkeep", schedule="0 4 * * *", **SETTINGS) as upkeep:
    job("replay_dead_letters", "--group OrderGroup --to retry --lock-timeout 10m")
    job("delete_expired_files", "--lock-timeout 10m")
    job("verify_store")
