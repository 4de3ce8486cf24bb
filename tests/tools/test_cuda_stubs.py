"""The stand-ins let a library load that was linked with CUDA, and answer "no device"."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

import cuda_stubs

NO_DEVICE = 100


def compile_library(out: Path, source: str, *arguments: str) -> None:
    out.with_suffix(".c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", str(out), str(out.with_suffix(".c")), *arguments]
    subprocess.run(command, check=True)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A directory with libuser.so, linked with a versioned libcuexample.so.1 that is no longer there.

    The name is no real CUDA library's: the loader would take one that another test's torch has loaded.
    """
    version_map = tmp_path / "cudart.map"
    version_map.write_text("libcuexample.so.1 { global: cudaGetDeviceCount; };\n")
    real = tmp_path / "libcuexample.so.1"
    compile_library(
        real,
        "int cudaGetDeviceCount(void) { return 0; }",
        "-Wl,-soname,libcuexample.so.1",
        f"-Wl,--version-script={version_map}",
    )
    compile_library(
        tmp_path / "libuser.so",
        "int cudaGetDeviceCount(void); int devices(void) { return cudaGetDeviceCount(); }",
        "-Wl,--no-as-needed",
        str(real),
        "-Wl,-rpath,$ORIGIN",
    )
    real.unlink()
    return tmp_path


def test_without_stand_ins_the_library_does_not_load(linked: Path) -> None:
    with pytest.raises(OSError, match=r"libcuexample\.so\.1"):
        ctypes.CDLL(str(linked / "libuser.so"))


def test_stand_in_loads_and_reports_no_device(linked: Path) -> None:
    assert cuda_stubs.build_stubs(linked) == ["libcuexample.so.1"]
    assert ctypes.CDLL(str(linked / "libuser.so")).devices() == NO_DEVICE


def test_present_libraries_are_left_alone(linked: Path) -> None:
    cuda_stubs.build_stubs(linked)
    assert cuda_stubs.build_stubs(linked) == []


def test_directory_without_libraries_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(cuda_stubs.StubError, match="no shared library"):
        cuda_stubs.build_stubs(tmp_path)


def test_other_missing_libraries_are_not_faked() -> None:
    found = cuda_stubs.Linkage(needed={"libcublas.so.13", "libm.so.6"}, undefined={"cublasCreate_v2", "cos"})
    assert cuda_stubs.plan(found, set()) == {"libcublas.so.13": {"": {"cublasCreate_v2"}}}
