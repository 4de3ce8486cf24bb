"""From the start of an engine to its first request."""

from __future__ import annotations

from demo.processes import DemoError, Processes
from demo.progress import Waiting, say


def wait_started(processes: Processes) -> tuple[str, str]:
    """Waits until the engine serves with the cache; its name and the verdict of its self-test."""
    processes.wait_healthy(Waiting(f"{processes.kind.name} starts"))
    processes.wait_serving()
    instance = processes.active_instance()
    if instance is None:
        raise DemoError("the cache became inactive again")
    attested, ranks = len(instance["ranks_attested"]), instance["world_size"]
    verdict = "passed" if attested == ranks else f"passed on {attested} of {ranks} ranks"
    for line in processes.engine_log.read_text(errors="replace").splitlines():
        if line.startswith("OrbitKV: "):
            say(line)
    return f"{instance['engine']} {instance['engine_version']}", verdict
