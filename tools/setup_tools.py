"""Checks the compilers and creates .venv/tools, the environment of the build tools (maturin, ruff).

    python3 tools/setup_tools.py

Standard library only. Versions are pinned in requirements-tools.txt; the environment is rebuilt when that
file or the Python changes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from host import Host, Missing, install_debian_packages

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv" / "tools"
REQUIREMENTS = ROOT / "tools" / "requirements-tools.txt"
STAMP = VENV / "orbitkv-stamp"


def minimum_rust() -> tuple[int, int]:
    """The oldest Rust the workspace builds with: rust-version in Cargo.toml."""
    match = re.search(r'^rust-version = "(\d+)\.(\d+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if not match:
        raise ValueError("Cargo.toml has no rust-version")
    return int(match[1]), int(match[2])


def rust_version() -> tuple[int, int] | None:
    """Version of the rustc on PATH, or None without one that runs."""
    try:
        done = subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    match = re.match(r"rustc (\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def missing_for_build(host: Host, rust: tuple[int, int] | None, minimum: tuple[int, int]) -> list[Missing]:
    """What building the workspace and the wheel would fail without."""
    found = []
    wanted = f"Rust {minimum[0]}.{minimum[1]} or newer"
    if rust is None or not host.has_command("cargo"):
        found.append(Missing(f"{wanted}: no rustc and cargo on PATH", "install them with rustup: rustup.rs"))
    elif rust < minimum:
        found.append(Missing(f"{wanted}: this is {rust[0]}.{rust[1]}", "rustup update stable"))
    for what, present, package in (
        ("gcc (links Rust programs)", host.has_command("gcc"), "gcc"),
        ("strip (makes the wheel small)", host.has_command("strip"), "binutils"),
        ("the C library's headers", Path("/usr/include/stdio.h").exists(), "libc6-dev"),
        ("the venv module of Python", host.has_module("ensurepip"), "python3-venv"),
    ):
        if not present:
            found.append(Missing(what, f"apt-get install {package}   (as root)", package))
    return found


def require_build_tools(host: Host) -> None:
    """Checks the compilers, installing what apt-get can bring; exits with the list of the rest."""
    missing = missing_for_build(host, rust_version(), minimum_rust())
    packages = [lack.debian_package for lack in missing if lack.debian_package]
    if packages and host.can_install_debian_packages():
        install_debian_packages(packages, lambda line: print(f"setup: {line}", flush=True))
        missing = missing_for_build(host, rust_version(), minimum_rust())
    if missing:
        sys.exit("setup: this machine lacks:\n" + "\n".join(f"  - {lack}" for lack in missing))


def main() -> None:
    require_build_tools(Host())
    stamp = f"python {sys.version_info[:2]} in {sys.base_prefix}\n{REQUIREMENTS.read_text()}"
    if not (STAMP.exists() and STAMP.read_text() == stamp):
        print("setup: installing maturin and ruff into .venv/tools", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        if subprocess.run([*pip, "--requirement", str(REQUIREMENTS)]).returncode != 0:
            sys.exit("setup: pip could not install the build tools (its message is above)")
        STAMP.write_text(stamp)
    print("setup: build tools are ready in .venv/tools")


if __name__ == "__main__":
    main()
