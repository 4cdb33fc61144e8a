"""Filling a store from what computes hidden states."""
