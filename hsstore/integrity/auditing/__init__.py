"""Computing stored samples again, and telling right from wrong by comparison."""
