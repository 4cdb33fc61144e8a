"""Doing what a repair plans: where what is lost comes from, and how it gets into its place."""
