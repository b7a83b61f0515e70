"""Builds the native kernels where a C++ compiler is there; without one the package is whole, and slower."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path(__file__).parent / "src" / "sluiceway" / "model" / "kernels"


class BuildKernels(build_ext):
    """One extension, which is no Python module: a plain library that ctypes opens."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        spec = importlib.util.spec_from_file_location("build_kernels", KERNELS / "build.py")
        assert spec and spec.loader
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            build.compile_library(Path(self.get_ext_fullpath(ext.name)))
        except OSError as error:
            self.warn(f"the native kernels are left out: {error}")
        except subprocess.CalledProcessError as error:
            self.warn(f"the native kernels are left out: {error}\n{error.stderr}")

    def copy_extensions_to_source(self) -> None:
        if any(Path(path).exists() for path in self.get_outputs()):
            super().copy_extensions_to_source()


setup(
    ext_modules=[Extension("sluiceway.model.kernels.libsluiceway_kernels", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
