"""What must be there before anything is started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from demo.engine import Engine
from demo.processes import DemoError
from demo.progress import say
from demo.settings import MIN_FREE_DISK_BYTES, MIN_FREE_MEMORY_BYTES, ROOT, SSD_MIN_FREE_SHARE, Places


def require_programs(engine: Engine, places: Places) -> None:
    """Checks that the engine's environment has what is started from it."""
    for name in ("orbitkv", "orbitkv-cache-manager", *engine.programs):
        if not places.program(name).exists():
            raise DemoError(f"{places.program(name)} is missing: run `make demo`, which installs it")


def require_room(engines: int) -> None:
    """Checks disk and memory for so many engines."""
    disk = shutil.disk_usage(ROOT)
    needed = MIN_FREE_DISK_BYTES + int(disk.total * SSD_MIN_FREE_SHARE)
    if disk.free < needed:
        raise DemoError(
            f"{ROOT} has {disk.free / 1e9:.1f} GB free, the demo needs {needed / 1e9:.1f}: "
            f"{MIN_FREE_DISK_BYTES / 1e9:.0f} to work in, and its SSD cache leaves "
            f"{SSD_MIN_FREE_SHARE:.0%} of a file system to others"
        )
    available_bytes, needed = memory_available_bytes(), MIN_FREE_MEMORY_BYTES * engines
    if available_bytes < needed:
        raise DemoError(
            f"{available_bytes / 1e9:.1f} GB of memory are available, it needs {needed / 1e9:.0f}"
        )


def memory_available_bytes() -> int:
    """`MemAvailable`; swap does not count."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise DemoError("/proc/meminfo does not name MemAvailable")


def make_ready(places: Places) -> None:
    """Makes the model if it is not there, and an empty directory for the results."""
    if not places.model.exists():
        say("making the tiny model")
        command = [sys.executable, str(ROOT / "tools" / "tiny_model.py"), str(places.model)]
        if subprocess.run(command, timeout=300).returncode != 0:
            raise DemoError("the tiny model could not be made (its message is above)")
    places.out.mkdir(parents=True, exist_ok=True)
    for old in (places.out / "summary.json", places.out / "ttft.png", *places.out.glob("*.log")):
        old.unlink(missing_ok=True)
    # Of a demo that was killed: the first round would not be cold.
    if places.ssd.exists():
        shutil.rmtree(places.ssd)
