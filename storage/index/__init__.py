"""The hash index: messages by key. Java: IndexService, IndexFile.

Begin with `store.py`.
"""
