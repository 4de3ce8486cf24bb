"""What the host offers, and what of it an engine environment misses.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SUPPORTED_PYTHONS = ((3, 11), (3, 12))


@dataclass(frozen=True)
class Missing:
    """One thing the host lacks: what it is, how to get it, and the Debian package if there is one."""

    what: str
    remedy: str
    debian_package: str | None = None

    def __str__(self) -> str:
        return f"{self.what}\n      {self.remedy}"


class Host:
    """Read-only questions to the machine; tests replace the answers."""

    def python_version(self) -> tuple[int, int]:
        """Version of the running interpreter."""
        return sys.version_info[:2]

    def machine(self) -> str:
        """Architecture, as `uname -m` says it."""
        return platform.machine()

    def has_command(self, name: str) -> bool:
        """Whether `name` is on PATH."""
        return shutil.which(name) is not None

    def has_library(self, soname: str) -> bool:
        """Whether the loader finds the shared library `soname`."""
        try:
            ctypes.CDLL(soname)
        except OSError:
            return False
        return True

    def has_header(self, name: str) -> bool:
        """Whether the C compiler finds the header `name`; False without a compiler."""
        try:
            done = subprocess.run(
                ["gcc", "-E", "-x", "c", "-"], input=f"#include <{name}>\n", text=True, capture_output=True
            )
        except OSError:
            return False
        return done.returncode == 0

    def has_module(self, name: str) -> bool:
        """Whether the running interpreter can import `name`."""
        return importlib.util.find_spec(name) is not None

    def free_bytes(self, directory: Path) -> int:
        """Free bytes of the file system `directory` is on, or would be on."""
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        return shutil.disk_usage(existing).free

    def can_install_debian_packages(self) -> bool:
        """Whether this process may run apt-get on a Debian-like system."""
        return os.geteuid() == 0 and self.has_command("apt-get")


def missing_for_engine(
    host: Host, directory: Path, required_bytes: int, programs: tuple[str, ...]
) -> list[Missing]:
    """Everything an engine environment in `directory` would fail without; empty when all is there.

    `programs` are the keys of `ENGINE_PROGRAMS` that this engine needs.
    """
    found = [*wrong_interpreter(host), *missing_programs(host, programs)]
    free_bytes = host.free_bytes(directory)
    if free_bytes < required_bytes:
        found.append(
            Missing(
                f"disk: {directory} has {free_bytes / 1e9:.1f} GB free, needs {required_bytes / 1e9:.1f} GB",
                "free some space, or choose another place with --venv DIR or ORBITKV_VENV_CACHE=DIR",
            )
        )
    return found


def wrong_interpreter(host: Host) -> list[Missing]:
    """Reasons for which the running Python or processor cannot carry the engine."""
    found = []
    version = host.python_version()
    if version not in SUPPORTED_PYTHONS:
        found.append(
            Missing(
                f"Python 3.11 or 3.12: this is {version[0]}.{version[1]}, which has no package list",
                "install one and say which: make setup PYTHON=python3.12 (Debian 12 has 3.11 as python3)",
            )
        )
    if host.machine() != "x86_64":
        found.append(
            Missing(
                f"an x86-64 processor: this is {host.machine()}, which has no package list",
                "use an x86-64 machine",
            )
        )
    return found


# What single engines need: what it is, who asks the host for it, and the Debian package that brings it.
ENGINE_PROGRAMS: dict[str, tuple[str, Callable[[Host, str], bool], str]] = {
    "libnuma.so.1": (
        "libnuma.so.1 (vLLM's CPU kernels link it)",
        lambda host, name: host.has_library(name),
        "libnuma1",
    ),
    "g++": (
        "g++ (SGLang compiles its page hashes when it first starts)",
        lambda host, name: host.has_command(name),
        "g++",
    ),
    "openssl/sha.h": (
        "openssl/sha.h (SGLang's page hashes include it)",
        lambda host, name: host.has_header(name),
        "libssl-dev",
    ),
}


def missing_programs(host: Host, programs: tuple[str, ...]) -> list[Missing]:
    """Programs and libraries that are not there, each with the Debian package that brings it."""
    wanted: list[tuple[str, bool, str]] = [
        ("gcc (builds the stand-ins for CUDA's libraries)", host.has_command("gcc"), "gcc"),
        ("readelf (reads what torch was linked with)", host.has_command("readelf"), "binutils"),
        (
            "the venv module of Python",
            host.has_module("venv") and host.has_module("ensurepip"),
            "python3-venv",
        ),
    ]
    for name in programs:
        what, has, package = ENGINE_PROGRAMS[name]
        wanted.append((what, has(host, name), package))
    return [
        Missing(
            what, f"apt-get install {package}   (as root; on other systems: the package with it)", package
        )
        for what, present, package in wanted
        if not present
    ]


def install_debian_packages(packages: list[str], say: Callable[[str], None]) -> bool:
    """Installs `packages` with apt-get; False when it failed, after its own words were shown."""
    say(f"installing Debian packages: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        if (
            subprocess.run(["apt-get", *arguments], env=environment, stdout=subprocess.DEVNULL).returncode
            != 0
        ):
            return False
    return True
