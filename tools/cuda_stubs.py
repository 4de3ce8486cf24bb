"""Stand-ins for the CUDA libraries that PyPI's torch links against, for machines without a GPU.

torch from PyPI refuses to import unless every CUDA library it was linked with can be loaded: about
3.4 GB that a CPU engine never calls. This tool reads which shared libraries and symbols torch's own
libraries want, and compiles one small library per missing CUDA name with exactly those symbols, each
under the version tag torch was linked with. Every function returns 100 (`cudaErrorNoDevice`), so
`torch.cuda.is_available()` is False and nothing else changes.

The stand-ins are written beside torch's libraries (torch's RPATH begins with `$ORIGIN`), therefore
only ever into an environment that belongs to this project.

Usage: python3 tools/cuda_stubs.py SITE_PACKAGES/torch/lib
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

SHARED_LIBRARY = re.compile(r"\.so(\.\d+)*$")
CUDA_LIBRARY = re.compile(r"^lib(cu|nccl|nv)")
CUDA_SYMBOL = re.compile(r"^_*(cu|nv|nccl)")
NO_DEVICE = 100  # cudaErrorNoDevice, and CUDA_ERROR_NO_DEVICE of the driver API

NEEDED = re.compile(r"\(NEEDED\).*\[(.+?)\]")
VERSION_FILE = re.compile(r"\bFile: (\S+)")
VERSION_NAME = re.compile(r"\bName: (\S+)\s+Flags")


class StubError(Exception):
    """The stand-ins could not be made; the message says what to do."""


@dataclass
class Linkage:
    """What a set of shared libraries wants from others, and what they offer each other."""

    needed: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)  # "name" or "name@VERSION"
    defined: set[str] = field(default_factory=set)
    library_of_version: dict[str, str] = field(default_factory=dict)


def readelf(*args: str) -> list[str]:
    """Lines that readelf prints for `args`."""
    done = subprocess.run(["readelf", "-W", *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise StubError(f"readelf {' '.join(args)} failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def read_linkage(libraries: list[Path]) -> Linkage:
    """Collects the dynamic sections, version needs and symbols of all `libraries`."""
    found = Linkage()
    for path in libraries:
        for line in readelf("-d", str(path)):
            if match := NEEDED.search(line):
                found.needed.add(match[1])
        read_versions(path, found)
        read_symbols(path, found)
    return found


def read_versions(path: Path, found: Linkage) -> None:
    """Records which library each symbol version of `path` is expected in."""
    library = None
    for line in readelf("-V", str(path)):
        if match := VERSION_FILE.search(line):
            library = match[1]
        elif library and (match := VERSION_NAME.search(line)):
            found.library_of_version[match[1]] = library


def read_symbols(path: Path, found: Linkage) -> None:
    """Sorts the dynamic symbols of `path` into wanted and offered ones; weak wants may stay unmet."""
    for line in readelf("--dyn-syms", str(path)):
        column = line.split()
        if len(column) < 8 or not column[0].rstrip(":").isdigit():
            continue
        binding, section, name = column[4], column[6], column[7]
        if section != "UND":
            found.defined.add(name.split("@")[0])
        elif binding != "WEAK":
            found.undefined.add(name)


def plan(found: Linkage, present: set[str]) -> dict[str, dict[str, set[str]]]:
    """Stand-ins to build: library name -> version tag ("" for none) -> symbols."""
    stubs: dict[str, dict[str, set[str]]] = {
        name: {} for name in sorted(found.needed - present) if CUDA_LIBRARY.match(name)
    }
    for wanted in sorted(found.undefined):
        symbol, _, version = wanted.partition("@")
        version = version.lstrip("@")
        if not stubs or symbol in found.defined:
            continue
        if version:
            library = found.library_of_version.get(version)
        else:
            # An unversioned symbol names no library. The loader searches all of them: any one will do.
            library = next(iter(stubs)) if CUDA_SYMBOL.match(symbol) else None
        if library in stubs:
            stubs[library].setdefault(version, set()).add(symbol)
    return stubs


def compile_stub(directory: Path, library: str, versions: dict[str, set[str]]) -> None:
    """Compiles one stand-in into `directory`."""
    symbols = sorted(set().union(*versions.values())) if versions else []
    source = "".join(f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name in symbols)
    version_map = "".join(
        f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
        for version, names in sorted(versions.items())
        if version
    )
    with tempfile.TemporaryDirectory() as scratch:
        c_file, map_file = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        c_file.write_text(source or "typedef int empty;\n")
        command = ["gcc", "-shared", "-fPIC", "-O0", "-fno-builtin", "-w", f"-Wl,-soname,{library}"]
        if version_map:
            map_file.write_text(version_map)
            command.append(f"-Wl,--version-script={map_file}")
        done = subprocess.run(
            [*command, "-o", str(directory / library), str(c_file)], capture_output=True, text=True
        )
    if done.returncode != 0:
        raise StubError(f"gcc could not build the stand-in for {library}: {done.stderr.strip()}")


def build_stubs(torch_lib: Path) -> list[str]:
    """Builds the stand-ins that the libraries in `torch_lib` miss and returns their names."""
    libraries = sorted(path for path in torch_lib.iterdir() if SHARED_LIBRARY.search(path.name))
    if not libraries:
        raise StubError(f"{torch_lib} holds no shared library: is this the lib directory of torch?")
    stubs = plan(read_linkage(libraries), {path.name for path in libraries})
    for library, versions in stubs.items():
        compile_stub(torch_lib, library, versions)
    return sorted(stubs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build stand-ins for the CUDA libraries torch asks for.")
    parser.add_argument("torch_lib", type=Path, help="the lib directory inside the installed torch")
    try:
        names = build_stubs(parser.parse_args().torch_lib)
    except StubError as error:
        print(f"cuda_stubs: {error}", file=sys.stderr)
        return 1
    print(f"built {len(names)} stand-ins: {' '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
