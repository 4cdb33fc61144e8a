"""Finding damage and mending it."""
