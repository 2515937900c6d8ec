"""What `verify` compares: log, queues and index, each with the others. Changes nothing.

Imports `ends`, `queues`, `index` and the rooms below them. Begin with `verify.py`.
"""
