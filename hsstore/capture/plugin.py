"""The entry point that every SGLang process calls; it does nothing unless HSSTORE_SPOOL is set."""

import os


def register() -> None:
    """Hook the capture into this server, or leave a hello that says why not.

    Called by SGLang (entry point group ``sglang.srt.plugins``) at the start of the launching
    process and of every scheduler. Never raises, and without HSSTORE_SPOOL imports nothing.
    """
    if os.environ.get("HSSTORE_SPOOL"):
        from hsstore.capture.registration import register_hooks  # noqa: PLC0415 - inert without

        register_hooks()
