"""Copying a store: the same store on another disk, or a new one cut or encoded from it."""
