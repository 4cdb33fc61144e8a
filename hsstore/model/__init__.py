"""Frozen records, protocols and pure functions; nothing here touches a file."""
