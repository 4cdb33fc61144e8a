"""Faults, damage and small models for tests; nothing else imports it."""
