"""Trees of hidden states that other tools wrote: reading them as data, never as programs."""
