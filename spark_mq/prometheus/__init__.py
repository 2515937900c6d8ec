"""RocketMQ's metrics as Prometheus reads them: names, sums, and the page. No sockets of RocketMQ, no files.

Begin with `metric.py` (a metric, its series, sums that many threads add to), then `rocketmq.py` (the metrics by Apache's names) and
`page.py` (text, and the HTTP server of prometheus_client).
"""
