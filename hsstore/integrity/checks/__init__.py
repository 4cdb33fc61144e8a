"""One file per question that fsck asks; each yields findings and writes nothing."""
