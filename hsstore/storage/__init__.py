"""Bytes on a filesystem: how a store is written, committed and read."""
