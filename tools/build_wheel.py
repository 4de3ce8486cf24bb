"""Builds the orbitkv wheel: the Python package, its native module and both commands.

    .venv/tools/bin/python tools/build_wheel.py               # dist/orbitkv-*.whl, what users install
    .venv/tools/bin/python tools/build_wheel.py --test-hooks  # dist/test-hooks/orbitkv-*.whl, for tests only

The shipped wheel is optimised and holds no test hook. The test wheel has the `test-hooks` feature of the
native module and of the manager, debug assertions, and beside the commands the stand-in for the CUDA driver;
it goes to a directory of its own, so that it is never taken for the other one.

maturin packs one crate. The two commands are therefore built first and handed to it as the wheel's
scripts (`data` in pyproject.toml): an installer puts these on PATH as they are.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "target" / "wheel"  # pyproject.toml's `data` points here
SCRIPTS = STAGE / "orbitkv.data" / "scripts"
# Command -> the crate that builds it.
COMMANDS = {"orbitkv-cache-manager": "orbitkv-manager", "orbitkv": "orbitkv-cli"}
# Of the test wheel: the driver of the fake device, and its crate.
FAKE_DRIVER, FAKE_CRATE = "liborbitkv_fake_cuda.so", "orbitkv-fake-cuda"


class BuildError(Exception):
    """A step of the build failed; the message names it."""


def run(command: list[str], *, capture: bool = False) -> str:
    """Runs `command` in the project root, its messages passing through; returns stdout if captured."""
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE if capture else None, text=True)
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not installed: `make setup` says how to get it") from None
    if done.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` exited with {done.returncode}")
    return done.stdout or ""


def build_commands(profile: str, test_hooks: bool) -> dict[str, Path]:
    """Builds both commands with cargo and returns where each executable is."""
    command = ["cargo", "build", "--locked", "--profile", profile, "--bins"]
    for crate in COMMANDS.values():
        command += ["--package", crate]
    if test_hooks:
        command += ["--features", "orbitkv-manager/test-hooks"]
    # cargo is asked for the paths: CARGO_TARGET_DIR and profiles move them.
    built = {}
    for line in run([*command, "--message-format=json-render-diagnostics"], capture=True).splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] in COMMANDS:
            built[message["target"]["name"]] = Path(message["executable"])
    if missing := sorted(COMMANDS.keys() - built.keys()):
        raise BuildError(f"cargo built no executable named {' or '.join(missing)}")
    return built


def build_fake_driver(profile: str) -> Path:
    """Builds the stand-in for the CUDA driver and returns where it is."""
    command = ["cargo", "build", "--locked", "--profile", profile, "--lib", "--package", FAKE_CRATE]
    for line in run([*command, "--message-format=json-render-diagnostics"], capture=True).splitlines():
        for file in map(Path, json.loads(line).get("filenames", ())):
            if file.name == FAKE_DRIVER:
                return file
    raise BuildError(f"cargo built no {FAKE_DRIVER}")


def stage_scripts(built: dict[str, Path]) -> None:
    """Fills the wheel's scripts directory with the executables, without their debug sections."""
    shutil.rmtree(SCRIPTS.parent, ignore_errors=True)
    SCRIPTS.mkdir(parents=True)
    for name, executable in built.items():
        shutil.copy2(executable, SCRIPTS / name)
        run(["strip", "--strip-debug", str(SCRIPTS / name)])


def build_wheel(profile: str, test_hooks: bool, out: Path) -> Path:
    """Packs everything into one wheel in `out`, which keeps no older one, and returns its path."""
    for old in out.glob("orbitkv-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "maturin", "build", "--locked", "--profile", profile, "--out", str(out)]
    # The native module is checked for portability by maturin, the commands are not: no claim is made.
    command += ["--compatibility", "linux"]
    if test_hooks:
        command += ["--features", "test-hooks"]
    run(command)
    wheels = list(out.glob("orbitkv-*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"maturin left {len(wheels)} wheels in {out}, expected one")
    return wheels[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the orbitkv wheel.")
    parser.add_argument("--test-hooks", action="store_true", help="build the wheel of the tests instead")
    args = parser.parse_args()
    profile = "dev" if args.test_hooks else "release"
    out = ROOT / "dist" / "test-hooks" if args.test_hooks else ROOT / "dist"
    STAGE.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    try:
        # Two builds at once would pack each other's executables.
        with (STAGE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            built = build_commands(profile, args.test_hooks)
            if args.test_hooks:
                built[FAKE_DRIVER] = build_fake_driver(profile)
            stage_scripts(built)
            wheel = build_wheel(profile, args.test_hooks, out)
    except BuildError as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    print(f"built {wheel.relative_to(ROOT)} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
