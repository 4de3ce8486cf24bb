"""Two managers on one cache directory: the second is refused with the name of the first (case A-56)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import Instance
from ssd import leave_on_ssd, on_ssd, restored, save_each, ssd, ssd_flags
from support.manager import Manager

CAPACITY = "8mib"
PAGES = [f"page-{index}" for index in range(30)]


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_case_a56_a_second_manager_is_refused_and_named_the_first(
    new_manager: Callable[..., Manager],
    new_instance: Callable[..., Instance],
    tmp_path: Path,
    end: str,
) -> None:
    directory, link = tmp_path / "ssd", tmp_path / "link"
    first = on_ssd(new_manager, directory, CAPACITY)
    instance = new_instance(first)
    save_each(first, instance, PAGES)
    link.symlink_to(tmp_path, target_is_directory=True)
    # By another path too: what is owned is the directory, not its name.
    for path in (directory, link / "ssd"):
        refused = rf"exited with 3:[\s\S]*{path}: another manager holds the lock.*process {first.pid}"
        with pytest.raises(AssertionError, match=refused):
            new_manager(pool_size="16mib", flags=ssd_flags(path, CAPACITY))
    command = ["orbitkv", "verify-ssd", str(directory), "--json"]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert (verified.returncode, json.loads(verified.stdout)["outcome"]) == (2, "not_checked")

    # The first has noticed nothing.
    assert ssd(first)["state"] == "serving"
    save_each(first, instance, ["after"])
    leave_on_ssd(first, instance)
    assert restored(instance, [*PAGES, "after"]) == [*PAGES, "after"]
    instance.close()
    if end == "stopped":
        assert first.stop() == 0
    else:
        first.kill()
    # Control: with the first gone it is nobody's, and the next one takes it over with all that is in it.
    second = on_ssd(new_manager, link / "ssd", CAPACITY)
    assert restored(new_instance(second), [*PAGES, "after"]) == [*PAGES, "after"]
