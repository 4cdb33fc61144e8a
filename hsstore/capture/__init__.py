"""The part of hsstore that runs inside an SGLang server, and what both sides agree on.

Installed beside SGLang without hsstore's dependencies: the standard library, torch and xxhash
(SGLang requires both) are all it may import, and of hsstore nothing but this package.
"""
