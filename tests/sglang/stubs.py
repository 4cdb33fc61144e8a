"""Write import stubs into this interpreter's site-packages, so that SGLang imports without CUDA.

``sgl_kernel`` has no wheel for CPUs, and torchvision's does not load beside torch's CPU build. A
server for text on torch_native attention imports both and calls neither: whoever calls a kernel
gets NotImplementedError with its name.
"""

import site
from pathlib import Path

KERNELS = '''"""A stub: see tests/sglang/stubs.py of hsstore."""

import importlib.abc
import importlib.machinery
import sys

__version__ = "0.4.10"
__path__ = []


class _Kernel:
    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"sgl_kernel is a stub here: {self.__name__}")

    def __getattr__(self, name):
        return _attribute(f"{self.__name__}.{name}", name)


def _attribute(full, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Kernel(full)


def __getattr__(name):
    return _attribute(name, name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module):
        module.__path__ = []
        module.__getattr__ = __getattr__


sys.meta_path.append(_Submodules())
'''

VISION = '''"""A stub: see tests/sglang/stubs.py of hsstore."""

__version__ = "0.29.1"


class _Name(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class InterpolationMode(metaclass=_Name):
    pass


class _Anything:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything
'''

VISION_PACKAGES = (
    "",
    "io",
    "ops",
    "transforms",
    "transforms/functional",
    "transforms/v2",
    "transforms/v2/functional",
    "utils",
)


def write(package: Path, text: str) -> None:
    """Make a package of one module."""
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(text)


if __name__ == "__main__":
    packages = Path(site.getsitepackages()[0])
    write(packages / "sgl_kernel", KERNELS)
    for name in VISION_PACKAGES:
        write(packages / "torchvision" / name, VISION)
