"""The engine setup: what it refuses, what it reuses, and what an interruption leaves behind."""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
import sys
from pathlib import Path

import pytest

import setup_engine
from host import Host, Missing

ENGINES = setup_engine.ENGINES
ENGINE = ENGINES["vllm-cpu"]
GCC = Missing("gcc (a compiler)", "apt-get install gcc", "gcc")


class Builds:
    """Replaces the real build: counts, and fails when told to."""

    def __init__(self) -> None:
        self.count = 0
        self.fail = False

    def __call__(self, engine: setup_engine.Engine, directory: Path, full: bool) -> None:
        self.count += 1
        setup_engine.create_venv(directory)
        if self.fail:
            raise setup_engine.SetupError("pip was interrupted")
        (directory / "bin").mkdir()
        (directory / "bin" / "python").touch()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    fake = Builds()
    monkeypatch.setattr(setup_engine, "build", fake)
    monkeypatch.setattr(setup_engine, "run", lambda *_args, **_options: None)
    monkeypatch.setattr(setup_engine, "missing_for_engine", lambda *_args: [])
    monkeypatch.delenv("ORBITKV_VENV_CACHE", raising=False)
    return fake


def setup(directory: Path, full: bool | None = None) -> Path:
    return setup_engine.setup(ENGINE, directory, full, Host())


def test_second_run_reuses_the_first(builds: Builds, tmp_path: Path) -> None:
    assert setup(tmp_path / "v") == tmp_path / "v"
    setup(tmp_path / "v")
    assert builds.count == 1


def test_interrupted_build_is_started_over(builds: Builds, tmp_path: Path) -> None:
    builds.fail = True
    with pytest.raises(setup_engine.SetupError, match="interrupted"):
        setup(tmp_path / "v")
    assert (tmp_path / "v" / setup_engine.STAMP).read_text() == setup_engine.UNFINISHED
    (tmp_path / "v" / "half-written").touch()
    builds.fail = False
    setup(tmp_path / "v")
    assert builds.count == 2
    assert not (tmp_path / "v" / "half-written").exists()


def test_other_package_list_rebuilds(builds: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup(tmp_path / "v")
    monkeypatch.setattr(setup_engine, "RECIPE_REVISION", setup_engine.RECIPE_REVISION + 1)
    setup(tmp_path / "v")
    assert builds.count == 2


def test_full_environment_serves_unless_slim_is_asked_for(builds: Builds, tmp_path: Path) -> None:
    setup(tmp_path / "v", full=True)
    setup(tmp_path / "v")
    assert builds.count == 1
    setup(tmp_path / "v", full=False)
    assert builds.count == 2


def test_foreign_directory_is_never_touched(builds: Builds, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(setup_engine.SetupError, match="holds something else"):
        setup(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "irreplaceable"
    assert builds.count == 0


def test_cache_is_linked_and_shared(builds: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITKV_VENV_CACHE", str(tmp_path / "cache"))
    for checkout in ("a", "b"):
        monkeypatch.setattr(setup_engine, "ROOT", tmp_path / checkout)
        assert setup_engine.locate(ENGINE, None) == tmp_path / "cache" / "vllm-cpu"
        assert (tmp_path / checkout / ".venv" / "vllm-cpu").is_symlink()


def test_real_directory_is_kept_beside_a_cache(
    builds: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBITKV_VENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(setup_engine, "ROOT", tmp_path)
    (tmp_path / ".venv" / "vllm-cpu").mkdir(parents=True)
    assert setup_engine.locate(ENGINE, None) == tmp_path / ".venv" / "vllm-cpu"


def test_link_to_a_removed_cache_is_replaced(
    builds: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_engine, "ROOT", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "vllm-cpu").symlink_to(tmp_path / "gone")
    assert setup_engine.locate(ENGINE, None) == tmp_path / ".venv" / "vllm-cpu"


def test_lock_is_held_while_building(tmp_path: Path) -> None:
    lock_file = tmp_path / "v.lock"
    with (
        setup_engine.exclusive(tmp_path / "v"),
        lock_file.open("w") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock_file.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Unprivileged(Host):
    def can_install_debian_packages(self) -> bool:
        return False


class Root(Host):
    def can_install_debian_packages(self) -> bool:
        return True


def test_ordinary_user_is_told_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_engine, "missing_for_engine", lambda *_args: [GCC])
    with pytest.raises(setup_engine.SetupError) as failure:
        setup_engine.require_host(Unprivileged(), ENGINE, tmp_path, 1)
    assert "gcc (a compiler)" in str(failure.value)
    assert "apt-get install gcc" in str(failure.value)


def test_root_gets_packages_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[GCC], []]
    installed: list[str] = []
    monkeypatch.setattr(setup_engine, "missing_for_engine", lambda *_args: answers.pop(0))
    monkeypatch.setattr(
        setup_engine, "install_debian_packages", lambda names, _say: installed.extend(names) or True
    )
    setup_engine.require_host(Root(), ENGINE, tmp_path, 1)
    assert installed == ["gcc"]
    assert answers == []


@pytest.mark.parametrize(
    ("name", "distribution"), [("vllm-cpu", "vllm-cpu"), ("sglang-cpu", "sglang")], ids=["vllm", "sglang"]
)
def test_every_supported_python_has_a_frozen_list(
    name: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ENGINES[name]
    for minor in (11, 12):
        monkeypatch.setattr(sys, "version_info", (3, minor, 0))
        lines = engine.packages().read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert all(line.count("==") == 1 and "/" not in line for line in pins)
        assert {"torch==2.13.0", f"{distribution}=={engine.version}"} <= set(pins)
        assert len({pin.partition("==")[0].lower() for pin in pins}) == len(pins), "a package is named twice"


def test_another_standin_makes_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ENGINES["sglang-cpu"]
    assert engine.standin is not None
    before = setup_engine.wanted_stamp(engine, False)
    other = shutil.copytree(engine.standin, tmp_path / engine.standin.name)
    changed = dataclasses.replace(engine, standin=other)
    assert setup_engine.wanted_stamp(changed, False) == before
    (other / "__init__.py").write_text("other = 1\n")
    assert setup_engine.wanted_stamp(changed, False) != before


def test_the_standin_lies_beside_the_engine(tmp_path: Path) -> None:
    engine = ENGINES["sglang-cpu"]
    engine.complete(engine, tmp_path)
    assert (tmp_path / "sgl_kernel" / "__init__.py").exists()
