"""Checks that are one of many over the same store: which shards come next, and what is kept."""
