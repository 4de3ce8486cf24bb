"""Serves a tiny model through OrbitKV and shows that evicted prefixes come back, with equal tokens.

    .venv/vllm-cpu/bin/python tools/demo.py            # what `make demo` runs; under 3 minutes on 2 cores
    .venv/vllm-cpu/bin/python tools/demo.py --prepare  # make demo PREPARE=on
    .venv/sglang-cpu/bin/python tools/demo.py --engine sglang-cpu  # make demo ENGINE=sglang

Rounds of the same streamed requests over HTTP, each after other prompts have pressed everything out of the
engine's own cache: cold; with all pages in memory; with all pages on the SSD alone; after a restart of the
cache manager, which finds them there while the engine goes on by itself. As a control the SSD directory is
then emptied, and everything must be a miss; a short last round shows that hits come back. With `--prepare`
there is one more: from the SSD, read ahead for requests that wait.

Results: out/demo/summary.json and out/demo/ttft.png. The SSD directory, out/demo/ssd, goes with the demo. The
exit code is 0 only if each round was served from where it had to be, every restored byte passed its checksum,
all outputs are equal, and everything that was reserved came back within five seconds.
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
from demo.engine import Engine
from demo.processes import HOST, DemoError, Processes
from demo.rounds import Round, Source, Stage
from demo.settings import (
    MIN_FREE_DISK_BYTES,
    MIN_FREE_MEMORY_BYTES,
    ROOT,
    SSD_MIN_FREE_SHARE,
    WRITTEN_S,
    Places,
)
from demo.sglang import Sglang
from demo.vllm import Vllm

ENGINES: dict[str, Engine] = {"vllm-cpu": Vllm(), "sglang-cpu": Sglang()}
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


def require_host(engine: Engine, places: Places) -> None:
    """Checks programs, disk and memory before anything is started."""
    for name in ("orbitkv", "orbitkv-cache-manager", *engine.programs):
        if not places.program(name).exists():
            raise DemoError(f"{places.program(name)} is missing: run `make demo`, which installs it")
    disk = shutil.disk_usage(ROOT)
    needed = MIN_FREE_DISK_BYTES + int(disk.total * SSD_MIN_FREE_SHARE)
    if disk.free < needed:
        raise DemoError(
            f"{ROOT} has {disk.free / 1e9:.1f} GB free, the demo needs {needed / 1e9:.1f}: "
            f"{MIN_FREE_DISK_BYTES / 1e9:.0f} to work in, and its SSD cache leaves "
            f"{SSD_MIN_FREE_SHARE:.0%} of a file system to others"
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
    # Of a demo that was killed: the first round would not be cold.
    if places.ssd.exists():
        shutil.rmtree(places.ssd)


def start(processes: Processes) -> tuple[str, str]:
    """Starts everything; returns the engine's name and the verdict of its self-test."""
    say("orbitkv run ...")
    processes.start()
    processes.wait_healthy(Waiting("the engine starts"))
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


def play(processes: Processes, prepare: bool) -> report.Outcome:
    """All rounds."""
    engine, self_test = start(processes)
    client = Client(processes.kind, HOST, processes.port)
    stage = Stage(processes, client, say)
    say("warming the engine up")
    client.complete_all(workload.warm_up_requests(), 1)
    serial, concurrent = workload.serial_requests(), workload.concurrent_requests()
    few = serial[: len(serial) // 3]

    rounds = [stage.play("cold", Source.NOTHING, serial, concurrent)]
    verdicts: dict[str, compare.Verdict] = {}

    def add(played: Round) -> None:
        rounds.append(played)
        verdicts[played.name] = compare.judge(stage, rounds[0], played, [*serial, *concurrent], say)

    stage.press("before the round from memory")
    add(stage.play("from memory", Source.MEMORY, serial, concurrent))
    stage.press("before the round from the SSD")
    stage.drop_memory()
    add(stage.play("from SSD", Source.SSD, serial, concurrent))
    ahead = None
    if prepare:
        stage.press("before reading ahead")
        stage.drop_memory()
        played, ahead = stage.read_ahead("read ahead", few, concurrent)
        add(played)
    stage.press("before the restart")
    stage.restart_manager()
    add(stage.play("manager restarted", Source.SSD, serial, concurrent))
    # Control: what came back did come from the directory.
    stage.press("before the control")
    stage.restart_manager(emptied=True)
    add(stage.play("SSD emptied", Source.NOTHING, few, []))
    stage.press("before the last round")
    add(stage.play("from memory again", Source.MEMORY, few, []))
    drains = [played.drain for played in rounds]
    return report.Outcome(engine, self_test, rounds, verdicts, drains, processes.ssd_mode(), ahead)


def finish(processes: Processes, places: Places, outcome: report.Outcome) -> int:
    """Stops the engine, checks the drain once more, writes the results and says how it went."""
    say("stopping the engine")
    processes.stop_engine()
    outcome.drains.append(
        drain.check("engine stopped", lambda: counters.status(processes.manager), WRITTEN_S, writes=True)
    )
    processes.close()
    for note in (note for verdict in outcome.verdicts.values() for note in verdict.notes):
        say(note)
    result = report.summary(outcome)
    plot.draw(places.out / "ttft.png", outcome.engine, curves(outcome))
    (places.out / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{report.table(outcome)}\n")
    if outcome.ahead:
        print(f"{report.ahead_line(outcome.ahead)}\n")
    print(json.dumps(result))
    found = report.problems(outcome)
    for problem in found:
        print(f"demo: {problem}", file=sys.stderr)
    if found:
        print(processes.tails(), file=sys.stderr)
    say(f"{'failed' if found else 'done'}: results in {places.out.relative_to(ROOT)}/")
    return 1 if found else 0


def curves(outcome: report.Outcome) -> list[plot.Curve]:
    """What the plot compares: the rounds in which all serial requests were sent one at a time."""
    labels = {
        "cold": "computed",
        "from memory": "from memory",
        "from SSD": "from SSD",
        "manager restarted": "from SSD after a restart",
    }
    return [
        plot.Curve(labels[played.name], played.serial) for played in outcome.rounds if played.name in labels
    ]


def interrupt(*_: object) -> None:
    """A plain kill cleans up like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="read ahead from a tier behind the pool")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="vllm-cpu", help="of this environment")
    arguments = parser.parse_args()
    engine = ENGINES[arguments.engine]
    signal.signal(signal.SIGTERM, interrupt)
    places = Places(programs=Path(sys.executable).parent)
    try:
        require_host(engine, places)
        make_ready(places)
    except (DemoError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    processes = Processes(engine, places, prepare=arguments.prepare)
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
