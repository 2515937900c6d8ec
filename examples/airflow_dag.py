"""An Airflow DAG whose tasks are the jobs of a store that no broker serves. Copy it into Airflow's folder of DAGs.

The workers need spark_mq and must see the store. A job that finds the store taken by a broker or another job exits with 75: the task is
skipped, and the next run does the work. Each job may be killed and repeated.
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
    letters = job("replay_dead_letters", "--group OrderGroup --since=-24h")
    letters >> job("delete_expired_files") >> job("verify_store")
