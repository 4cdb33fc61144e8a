"""Reading a store in a PyTorch training loop."""
