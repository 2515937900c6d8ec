"""The console: pages about a cluster or about stores on a disk, for a browser. `spark-mq console` serves them.

Begin with `application.py`: the routes. `views.py` says what a page may ask for, of a store (`store_view.py`) and of a cluster
(`cluster_view.py`) alike; `shown.py` makes text of what messages hold, and `security.py` decides who is let in.
"""
