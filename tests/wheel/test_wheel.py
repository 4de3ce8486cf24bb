"""The wheel as a user meets it: installed into a new environment. `make test` builds both wheels first."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DIST = Path(__file__).resolve().parents[2] / "dist"
COMMANDS = ("orbitkv", "orbitkv-cache-manager")
# The environment variable that switches hold points on: a build without test hooks does not know it.
HOOK_MARK = b"ORBITKV_TEST_DIR"


def only_wheel(directory: Path) -> Path:
    wheels = list(directory.glob("orbitkv-*.whl"))
    assert len(wheels) == 1, f"expected one wheel in {directory}, found {[wheel.name for wheel in wheels]}"
    return wheels[0]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a new environment that holds the wheel and nothing else."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-index", str(only_wheel(DIST))], check=True)
    return venv / "bin"


def run(directory: Path, *command: str) -> str:
    """Output of an installed command, run from elsewhere and with only its own directory on PATH."""
    environment = {"PATH": str(directory)}
    done = subprocess.run(
        [str(directory / command[0]), *command[1:]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_on_path_and_knows_its_version(installed: Path, command: str) -> None:
    version = run(installed, "python", "-c", "import orbitkv; print(orbitkv.__version__)").strip()
    assert version in run(installed, command, "--version")


def test_package_native_module_and_metadata_agree(installed: Path) -> None:
    program = (
        "import importlib.metadata as m, orbitkv, orbitkv._native as n;"
        "print(m.version('orbitkv'), orbitkv.__version__, n.__version__)"
    )
    assert len(set(run(installed, "python", "-c", program).split())) == 1


def test_wheel_is_abi3_for_python_310_and_later() -> None:
    assert "-cp310-abi3-" in only_wheel(DIST).name


def files_with_hooks(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {Path(name).name for name in archive.namelist() if HOOK_MARK in archive.read(name)} - {
            "RECORD"
        }


def test_shipped_wheel_has_no_test_hooks() -> None:
    assert files_with_hooks(only_wheel(DIST)) == set()
    # Control: the same search finds them where they belong.
    assert {"orbitkv-cache-manager", "_native.abi3.so"} <= files_with_hooks(only_wheel(DIST / "test-hooks"))


def test_only_the_test_wheel_has_the_fake_device() -> None:
    def has_it(wheel: Path) -> bool:
        with zipfile.ZipFile(wheel) as archive:
            return any("fake_cuda" in name for name in archive.namelist())

    assert not has_it(only_wheel(DIST))
    assert has_it(only_wheel(DIST / "test-hooks"))
