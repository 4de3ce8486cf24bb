"""Serves a tiny model through OrbitKV and shows that evicted prefixes come back, with equal tokens.

    .venv/vllm-cpu/bin/python tools/demo.py            # what `make demo` runs; under 3 minutes on 2 cores
    .venv/vllm-cpu/bin/python tools/demo.py --prepare  # make demo PREPARE=on
    .venv/sglang-cpu/bin/python tools/demo.py --engine sglang-cpu  # make demo ENGINE=sglang
    .venv/vllm-cpu/bin/python tools/demo.py --engine both  # make demo ENGINE=both

Rounds of the same streamed requests over HTTP, each after other prompts have pressed everything out of the
engine's own cache: cold; with all pages in memory; with all pages on the SSD alone; after a restart of the
cache manager, which finds them there while the engine goes on by itself. As a control the SSD directory is
then emptied, and everything must be a miss; a short last round shows that hits come back. With `--prepare`
there is one more: from the SSD, read ahead for requests that wait. `--engine both` is a demo of its own: see
demo/both.py.

Results: out/demo/summary.json and out/demo/ttft.png. The SSD directory, out/demo/ssd, goes with the demo. The
exit code is 0 only if each round was served from where it had to be, every restored byte passed its checksum,
all outputs are equal, and everything that was reserved came back within five seconds.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from demo import both, both_report, compare, counters, drain, plot, report, workload
from demo.client import Client, RequestError
from demo.counters import CountersError
from demo.engine import Engine
from demo.processes import HOST, DemoError, Processes, on_one_manager
from demo.progress import say
from demo.ready import make_ready, require_programs, require_room
from demo.rounds import Round, Source, Stage
from demo.settings import ROOT, WRITTEN_S, Places
from demo.sglang import Sglang
from demo.start import wait_started
from demo.vllm import Vllm

ENGINES: dict[str, Engine] = {"vllm-cpu": Vllm(), "sglang-cpu": Sglang()}
# With `--engine both` the demo is another one.
BOTH = "both"


def play(processes: Processes, prepare: bool) -> report.Outcome:
    """All rounds."""
    say("orbitkv run ...")
    processes.start()
    engine, self_test = wait_started(processes)
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
    return conclude(report.problems(outcome), places, processes.tails)


def finish_both(places: Places, outcome: both_report.Outcome, tails: Callable[[], str]) -> int:
    """The same for both engines at once, which have been stopped."""
    for note in (note for share in outcome.shares for note in share.verdict.notes):
        say(note)
    result = both_report.summary(outcome)
    (places.out / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{both_report.table(outcome)}\n")
    print(json.dumps(result))
    return conclude(both_report.problems(outcome), places, tails)


def conclude(found: list[str], places: Places, tails: Callable[[], str]) -> int:
    """Says what was wrong, if anything; the exit code."""
    for problem in found:
        print(f"demo: {problem}", file=sys.stderr)
    if found:
        print(tails(), file=sys.stderr)
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
    parser.add_argument("--engine", choices=[*sorted(ENGINES), BOTH], default="vllm-cpu")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    is_both = arguments.engine == BOTH
    if is_both and arguments.prepare:
        parser.error("--prepare is for one engine")
    served = both.engines() if is_both else [alone(arguments.engine)]
    places = served[0][1]
    try:
        for engine in served:
            require_programs(*engine)
        require_room(len(served))
        make_ready(places)
    except (DemoError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    started = on_one_manager(served, prepare=arguments.prepare)

    def tails() -> str:
        return "\n".join(each.tails() for each in started)

    try:
        if is_both:
            return finish_both(places, both.play(started), tails)
        return finish(started[0], places, play(started[0], arguments.prepare))
    except (DemoError, RequestError, CountersError) as error:
        print(f"{tails()}\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted, stopping everything", file=sys.stderr)
        return 130
    finally:
        # A second Ctrl-C must not leave half of it running; all waits in there are bounded.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The last one has the manager.
        for each in reversed(started):
            each.close()


def alone(name: str) -> tuple[Engine, Places]:
    """One engine, with the programs of the environment that this runs in."""
    return ENGINES[name], Places(programs=Path(sys.executable).parent)


if __name__ == "__main__":
    sys.exit(main())
