"""Who is behind: the lag of consumer groups and Spark queries, of a running cluster or of stores on a disk.

    figures.py       values, and what follows from one or two looks: lag, age, rates, time to catch up. Pure
    of_cluster.py    looks at running brokers, with a bounded number of requests
    of_stores.py     looks at stores
    checkpoints.py   the position of a Spark query, from its checkpoint

Begin with `figures.py`. The commands, the exporter and the console take their figures from here.
"""
