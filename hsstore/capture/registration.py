"""Hooking the recorder into SGLang, where this is a release that it was run with."""

import logging
import multiprocessing
import os
import re
import secrets
from importlib import import_module
from importlib.metadata import version
from typing import Any

from hsstore.capture.hello import HelloFile
from hsstore.capture.recorder import Recorder, first_hello, publish_refusal
from hsstore.capture.releases import RELEASES
from hsstore.capture.settings import BOOT, Refused, read_settings, spool_folder

LOG = logging.getLogger("hsstore.capture")
BOOT_ID = re.compile(r"[0-9a-f]{32}")

LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"
FORWARD = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
RESULT = "sglang.srt.managers.scheduler.Scheduler.process_batch_result"


def register_hooks() -> None:
    """Register the four hooks with SGLang; a failure is logged and leaves the server alone."""
    try:
        launching = multiprocessing.parent_process() is None
        boot = boot_id(launching=launching)
        release = version("sglang")
        try:
            _refuse_unknown(release)
            settings = read_settings(os.environ)
        except Refused as error:
            if launching:
                _say_refused(boot, release, str(error))
            return
        if not launching:  # it runs no scheduler, and hooking would import one
            _hook(Recorder(settings, first_hello(boot, release, version("hsstore"))))
    except Exception:
        # Whatever it is, the server goes on without capture and the client misses the hello.
        LOG.exception("hsstore captures nothing")


def boot_id(*, launching: bool) -> str:
    """The id of this launch: drawn by the launching process, inherited by all that it starts."""
    if launching:
        os.environ[BOOT] = secrets.token_hex(16)
    boot = os.environ.get(BOOT, "")
    if not BOOT_ID.fullmatch(boot):
        raise ValueError(f"{BOOT} was not handed down by the process that launched the server")
    return boot


def _refuse_unknown(release: str) -> None:
    if release not in RELEASES:
        raise Refused(
            f"SGLang {release} was never run with this plugin; known: {', '.join(RELEASES)}"
        )


def _say_refused(boot: str, release: str, reason: str) -> None:
    LOG.warning("hsstore captures nothing: %s", reason)
    try:
        folder = spool_folder(os.environ)
    except Refused:
        return
    hello = first_hello(boot, release, version("hsstore"))
    publish_refusal(HelloFile(folder), hello.refusing(reason))


def _hook(recorder: Recorder) -> None:
    # SGLang is there only inside a server.
    registry: Any = import_module("sglang.srt.plugins.hook_registry")
    register, kinds = registry.HookRegistry.register, registry.HookType

    register(LOAD, recorder.load, kinds.AFTER)
    register(LOGITS, recorder.logits, kinds.AROUND)
    register(FORWARD, recorder.forward, kinds.AFTER)
    register(RESULT, recorder.result, kinds.BEFORE)
