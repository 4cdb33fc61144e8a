"""Real SGLang servers on this machine's CPU, for tests and benchmarks."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
READY_SECONDS = 600.0  # 20 to 60 on a quiet machine
STOP_SECONDS = 20.0
HIGHEST_PORT = 65535 - 10000
LAUNCHES = 3


class SGLangServer:
    """An unpatched server of one release, in a process group of its own, on 127.0.0.1.

    ``release`` names a virtual environment that tests/sglang/install.sh made below the folder
    HSSTORE_SGLANG (build/sglang by default). ``plugin`` is a folder with hsstore installed in it
    (``install_plugin``), for servers that shall find the capture plugin. ``start`` waits until the
    server is ready; ``kill`` ends it as a crash would. ``url`` and ``log`` tell where it is.
    Without ``port`` its first start finds a free one, which it keeps then.
    """

    def __init__(
        self,
        release: str,
        model: Path,
        log: Path,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        plugin: Path | None = None,
        dtype: str = "float32",
        port: int | None = None,
    ) -> None:
        self.release = release
        self.model = model
        self.log = log
        self.flags = tuple(flags)
        self.env = dict(env or {})
        self.plugin = plugin
        self.dtype = dtype
        self.port = port or free_port()
        self._port_is_fixed = port is not None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Launch and wait until it is healthy; RuntimeError with the end of its log otherwise."""
        for left in reversed(range(LAUNCHES)):
            told = self.log.stat().st_size if self.log.exists() else 0
            try:
                self._launch()
            except RuntimeError:
                # Another process may have bound the port since it was found free.
                taken = b"already in use" in self.log.read_bytes()[told:].lower()
                if self._port_is_fixed or not taken or not left:
                    raise
                self.port = free_port()
            else:
                self._port_is_fixed = True
                return

    def _launch(self) -> None:
        python = environment(self.release) / "bin" / "python"
        paths = [str(self.plugin)] if self.plugin else []
        command: list[str | Path] = [
            python, "-m", "sglang.launch_server", "--model-path", self.model, "--dtype", self.dtype,
            "--device", "cpu", "--attention-backend", "torch_native", "--host", "127.0.0.1",
            "--port", str(self.port), "--skip-tokenizer-init", "--max-total-tokens", "16384",
            "--max-running-requests", "8", "--mem-fraction-static", "0.3", "--sleep-on-idle",
            *self.flags,
        ]  # fmt: skip
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HSSTORE_"))},
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            **self.env,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the command is spelled out above
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the server and all its processes."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would: SIGKILL to all of its processes."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/health", timeout=30),  # noqa: S310 - http
            ):
                return
            time.sleep(0.3)
        end = self.log.read_bytes()[-4000:].decode(errors="replace")
        raise RuntimeError(f"sglang {self.release} did not come up:\n{end}")


def environment(release: str) -> Path:
    """The virtual environment of a release."""
    folder = os.environ.get("HSSTORE_SGLANG")
    return (Path(folder) if folder else ROOT / "build" / "sglang") / release


def install_plugin(release: str, folder: Path) -> Path:
    """Install this hsstore into ``folder`` as an operator would beside SGLang, and return it."""
    pip: list[str | Path] = [
        environment(release) / "bin" / "pip",
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*pip, "--target", folder, ROOT], check=True)  # noqa: S603 - spelled out
    return folder


def several_ranks(release: str, *, tp: int = 1, dp: int = 1) -> tuple[list[str], dict[str, str]]:
    """Flags and environment of a server of several processes, all on all of the CPUs.

    Without the environment a server wants a NUMA node for each rank. Up to 0.5.17 it counts the
    ranks of one replica, from 0.5.20 on those of all.
    """
    counted = tp if release in ("0.5.12", "0.5.17") else tp * dp
    cpus = f"0-{(os.cpu_count() or 1) - 1}"
    binding = "|".join([cpus] * counted)
    flags = ["--tp-size", str(tp), "--dp-size", str(dp)]
    return flags, {"SGLANG_CPU_OMP_THREADS_BIND": binding}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; 0.5.12 opens another 10,000 above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= HIGHEST_PORT:
            return port
