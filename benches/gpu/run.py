"""Runs the benchmark or the tests on a host with one GPU and no network, within a time budget.

    python -m benches.gpu.run bench [--engine NAME] --budget-s 600 --out DIR [--only PART…] [--systems NAME…]
    python -m benches.gpu.run test [--engine NAME] --budget-s 600 --out DIR [-- PYTEST ARGUMENTS]

Parts run in order of worth; one that does not fit into what is left of the budget is not begun. What was
measured is written as it comes and summed up in any case; a short table is printed last. DIR defaults to
$OUT, else out/gpu. The engine and an installed orbitkv wheel must be importable; peers that are not installed
are left out."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__" and __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.gpu import host, summary, tests, ttft
from benches.gpu.budget import Budget
from benches.gpu.kinds import KINDS
from benches.gpu.part import Part
from benches.gpu.prompts import Seeds
from benches.gpu.rows import Rows
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB
from benches.gpu.systems import Site, orbitkv_commands

LOG_BYTES = 400_000


def bench(args: argparse.Namespace, out: Path) -> int:
    """Runs the parts and publishes; 1 if one of them broke."""
    kind = KINDS[args.engine]
    budget = Budget(args.budget_s)
    rows = Rows(out)
    work = Path(tempfile.mkdtemp(prefix="okv-bench-"))
    pool_bytes = GIB if args.dry_run else int(args.pool_gib * GIB)
    site = Site(work, pool_bytes, dict(args.connector), tuple(args.manager))
    seeds = Seeds(args.seed)
    asked = {"is_dry_run": args.dry_run, "lengths": tuple(args.lengths)}
    run = Run(rows, budget, site, tuple(args.systems), seeds, begin=kind.begin, **asked)
    if not args.dry_run:
        rows.add("host", grown_s=round(host.grow_memory(kind.memory_bytes), 2))
    manifest = host.manifest(sys.argv[1:], run.systems, args.budget_s, kind.model)
    try:
        for part in kind.parts:
            if not part.is_asked_for(args.only):
                continue
            if not budget.allows(part.seconds / 2):
                run.rows.add(part.name, kind="missing", reason=f"{budget.left_s:.0f} s were left")
                run.say(f"{part.name}: not begun, {budget.left_s:.0f} s left")
                continue
            run.say(f"{part.name}: begins, {budget.left_s:.0f} s left")
            _measured(run, part)
    finally:
        _keep_logs(work, out)
        print(summary.publish(rows, manifest, out, kind.shown), flush=True)
        shutil.rmtree(work, ignore_errors=True)
    return 1 if any(row.get("kind") == "failed" for row in rows.all) else 0


def _measured(run: Run, part: Part) -> None:
    try:
        part.measure(run)
    except Exception as error:  # noqa: BLE001 - the other parts are measured all the same
        run.rows.add(part.name, kind="failed", reason=f"{type(error).__name__}: {error}"[-4000:])
        run.say(traceback.format_exc()[-3000:])


def _keep_logs(work: Path, out: Path) -> None:
    """One file with the end of each log: whoever fetches them may count files."""
    with (out / "logs.txt").open("w") as kept:
        for log in sorted((work / "logs").glob("*.log")):
            text = log.read_text(errors="replace")
            kept.write(f"===== {log.name}, {len(text)} characters\n{text[-LOG_BYTES:]}\n")


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command line. What follows `--` is for pytest."""
    own, _, rest = _split(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("bench", "test"))
    parser.add_argument("--budget-s", type=float, default=600.0, help="seconds that it may take (600)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/gpu")))
    parser.add_argument("--engine", choices=KINDS, default="vllm", help="(vllm)")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help=_choices(_parts))
    parser.add_argument("--systems", nargs="+", default=[], metavar="NAME", help=_choices(_systems))
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        choices=ttft.LENGTHS,
        default=[],
        help="of prompts whose TTFT is taken",
    )
    parser.add_argument(
        "--pool-gib",
        type=float,
        default=24,
        help="host memory of each system's cache; OrbitKV's of vLLM may grow a third more",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument(
        "--connector",
        nargs="*",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="settings of OrbitKV's adapter",
    )
    parser.add_argument(
        "--manager",
        nargs="*",
        default=[],
        metavar="FLAG",
        help="flags of the manager: --manager=--scrub-rate=0",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="a tiny model without a GPU: tries the scripts, says nothing"
    )
    args = parser.parse_args(own)
    for given, known in ((args.only, _parts(args.engine)), (args.systems, _systems(args.engine))):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{unknown[0]!r} is not of {args.engine}: choose from {', '.join(known)}")
    args.systems = args.systems or list(_systems(args.engine))
    args.pytest = rest
    return args


def _parts(engine: str) -> tuple[str, ...]:
    return tuple(part.name for part in KINDS[engine].parts)


def _systems(engine: str) -> tuple[str, ...]:
    return KINDS[engine].systems


def _choices(names: Callable[[str], tuple[str, ...]]) -> str:
    return "; ".join(f"{engine}: {', '.join(names(engine))}" for engine in KINDS)


def _setting(text: str) -> tuple[str, Any]:
    """`KEY=VALUE`; a value that is JSON (a number, true) is that, any other is text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as load_mode=sync")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in arguments:
        return arguments, "", []
    at = arguments.index("--")
    return arguments[:at], "--", arguments[at + 1 :]


def main() -> int:
    args = parsed(sys.argv[1:])
    orbitkv_commands()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    return bench(args, out) if args.what == "bench" else tests.run(args, KINDS[args.engine].tests, out)


if __name__ == "__main__":
    sys.exit(main())
