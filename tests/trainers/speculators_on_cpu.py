"""Runs speculators' command line on a CPU, and prints the metrics of every step as JSON lines.

usage: speculators_on_cpu.py ARGUMENT..    (those of ``speculators``)

Its trainer takes a rank's number for a device and waits for an accelerator; here it gets the CPU.
"""

import json
import sys
from typing import Any

import torch

import hsstore.interop.speculators_backend  # noqa: F401 - before speculators collects backends
from hsstore.interop.speculators_cli import main


class Printing:
    """In the place of the trainer's logger of metrics."""

    def info(self, metrics: dict[str, Any], **_: object) -> None:
        if "train" in metrics:
            sys.stdout.write(json.dumps(metrics["train"]) + "\n")


def train_on_the_cpu() -> None:
    from speculators.train import trainer  # noqa: PLC0415 - heavy, and not for the workers

    trainer.get_local_rank = lambda: "cpu"
    trainer.Trainer.device_type = property(lambda _: "cpu", lambda *_: None)
    torch.accelerator.synchronize = lambda *_: None
    trainer.metric_logger = Printing()


if __name__ == "__main__":
    train_on_the_cpu()
    main()
