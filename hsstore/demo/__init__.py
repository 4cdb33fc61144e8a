"""A small model and a small corpus, made on the spot: something to try hsstore with."""
