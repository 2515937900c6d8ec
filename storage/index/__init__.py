"""The hash index: messages by key. Java: IndexService, IndexFile.

Imports `log` and the rooms below it. Begin with `store.py`.
"""
