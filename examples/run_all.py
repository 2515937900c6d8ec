"""Runs the programs of this folder one after the other: `make examples`. Ends with the first that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAMS = ("store_without_broker.py", "mend_dead_letters.py", "parquet_to_cluster.py", "live_topic_to_delta.py")
"""All but the DAG, which Airflow runs."""

if __name__ == "__main__":
    for program in PROGRAMS:
        print(f"\n{program}", flush=True)
        subprocess.run([sys.executable, FOLDER / program], check=True)
