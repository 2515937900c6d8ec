"""The archiver: topics into one Delta table, by Spark's tasks and commits of delta-rs; the table's upkeep; putting back.

Begin with `archiver.py`. How the table is read is in `spark_mq/source/archive_table.py`.
"""
