"""A read-only look at a tree of loose sample files: what is there, missing, broken, unprovable."""
