"""The host check names what is missing and how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

import host
from pinned_engines import ENGINES

GB = 10**9


class FakeHost(host.Host):
    """A host that has everything, less what a test takes away."""

    def __init__(
        self,
        without: frozenset[str] = frozenset(),
        python: tuple[int, int] = (3, 11),
        machine: str = "x86_64",
        free_bytes: int = 100 * GB,
    ) -> None:
        self.without = without
        self.python = python
        self.architecture = machine
        self.free = free_bytes

    def python_version(self) -> tuple[int, int]:
        return self.python

    def machine(self) -> str:
        return self.architecture

    def has_command(self, name: str) -> bool:
        return name not in self.without

    has_library = has_module = has_header = has_command

    def free_bytes(self, directory: Path) -> int:
        return self.free


def lacks(machine: FakeHost, engine: str = "vllm-cpu") -> list[host.Missing]:
    return host.missing_for_engine(machine, Path("/somewhere/venv"), 5 * GB, ENGINES[engine].programs)


def test_complete_host_lacks_nothing() -> None:
    for engine in ENGINES:
        assert lacks(FakeHost(), engine) == []
        assert lacks(FakeHost(python=(3, 12)), engine) == []


@pytest.mark.parametrize(
    ("absent", "package"),
    [("gcc", "gcc"), ("readelf", "binutils"), ("libnuma.so.1", "libnuma1"), ("ensurepip", "python3-venv")],
)
def test_missing_program_is_named_with_its_package(absent: str, package: str) -> None:
    (lack,) = lacks(FakeHost(without=frozenset({absent})))
    assert lack.debian_package == package
    assert f"apt-get install {package}" in str(lack)


@pytest.mark.parametrize(("absent", "package"), [("g++", "g++"), ("openssl/sha.h", "libssl-dev")])
def test_what_one_engine_needs_is_asked_for_it_alone(absent: str, package: str) -> None:
    machine = FakeHost(without=frozenset({absent}))
    (lack,) = lacks(machine, "sglang-cpu")
    assert lack.debian_package == package
    assert lacks(machine, "vllm-cpu") == []
    assert lacks(FakeHost(without=frozenset({"libnuma.so.1"})), "sglang-cpu") == []


def test_missing_gcc_is_named() -> None:
    (lack,) = lacks(FakeHost(without=frozenset({"gcc"})))
    assert lack.what.startswith("gcc")


def test_short_disk_is_named_with_both_sizes() -> None:
    (lack,) = lacks(FakeHost(free_bytes=1_200_000_000))
    assert "disk: /somewhere/venv has 1.2 GB free, needs 5.0 GB" in lack.what
    assert "ORBITKV_VENV_CACHE" in lack.remedy
    assert lack.debian_package is None


def test_enough_disk_to_the_byte() -> None:
    assert lacks(FakeHost(free_bytes=5 * GB)) == []
    assert len(lacks(FakeHost(free_bytes=5 * GB - 1))) == 1


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_python_without_a_package_list_is_named(version: tuple[int, int]) -> None:
    (lack,) = lacks(FakeHost(python=version))
    assert f"this is {version[0]}.{version[1]}" in lack.what


def test_other_processor_is_named() -> None:
    (lack,) = lacks(FakeHost(machine="aarch64"))
    assert "aarch64" in lack.what


def test_everything_missing_is_listed_at_once() -> None:
    found = lacks(FakeHost(without=frozenset({"gcc", "libnuma.so.1"}), free_bytes=0))
    assert len(found) == 3


def test_real_host_answers(tmp_path: Path) -> None:
    machine = host.Host()
    assert not machine.has_command("no-such-command-here")
    assert not machine.has_library("libno-such-library.so.1")
    assert machine.has_library("libc.so.6")
    assert not machine.has_header("no/such/header.h")
    assert machine.has_header("stdio.h")
    assert machine.free_bytes(tmp_path / "not" / "there" / "yet") > 0
