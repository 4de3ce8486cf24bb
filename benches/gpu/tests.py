"""Runs the tests of an engine within a time budget and leaves their outcomes as rows."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benches.gpu.child import ROOT
from benches.gpu.rows import Rows

CONFIGURATION = ROOT / "tests" / "gpu" / "pytest.ini"
# Tests look at it before they begin: seconds since the epoch.
DEADLINE_VARIABLE = "ORBITKV_GPU_DEADLINE"
DRY_RUN_VARIABLE = "ORBITKV_GPU_DRY_RUN"
OUT_VARIABLE = "ORBITKV_GPU_OUT"
CLOSING_S = 20


def run(args: argparse.Namespace, directory: Path, out: Path) -> int:
    """pytest's exit code for the tests in `directory`; 1 as well if a test was not run for want of time."""
    report = out / "tests.xml"
    environment = {**os.environ, DEADLINE_VARIABLE: str(time.time() + args.budget_s), OUT_VARIABLE: str(out)}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), environment.get("PYTHONPATH", "")))
    if args.dry_run:
        environment[DRY_RUN_VARIABLE] = "1"
    # The project's own configuration wants plugins that such a host need not have.
    command = [sys.executable, "-m", "pytest", "-c", str(CONFIGURATION), f"--rootdir={directory}"]
    command += [f"--junit-xml={report}", "-v", *(args.pytest or [str(directory)])]
    report.unlink(missing_ok=True)
    code = _run(command, environment, args.budget_s)
    rows = Rows(out)
    outcomes = _outcomes(report)
    for name, outcome, seconds, why in outcomes:
        rows.add("test", name=name, outcome=outcome, seconds=seconds, why=why)
    print(_table(outcomes))
    left_out = any(outcome == "not run" for _, outcome, _, _ in outcomes)
    return code or (1 if left_out or not outcomes else 0)


def _run(command: list[str], environment: dict[str, str], budget_s: float) -> int:
    """pytest's exit code. One that is not done in time is interrupted: it still ends its engines and
    reports."""
    with subprocess.Popen(command, env=environment) as process:
        for wait_s in (budget_s, CLOSING_S):
            try:
                return process.wait(timeout=wait_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        process.kill()
    return 1


def _outcomes(report: Path) -> list[tuple[str, str, float, str]]:
    if not report.exists():
        return []
    outcomes = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcome, why = "passed", ""
        for kind, word in (("failure", "FAILED"), ("error", "FAILED"), ("skipped", "not run")):
            if (found := case.find(kind)) is not None:
                outcome, why = word, (found.get("message") or "").strip().splitlines()[-1:][0:1]
                why = why[0] if why else ""
        if not case.get("name"):
            continue  # of a run that was interrupted
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcomes.append((name, outcome, round(float(case.get("time", 0)), 1), why[:300]))
    return outcomes


def _table(outcomes: list[tuple[str, str, float, str]]) -> str:
    if not outcomes:
        return "no test has ended"
    width = max(len(name) for name, *_ in outcomes)
    return "\n".join(
        f"{name:<{width}} {outcome:<8} {seconds:>6.1f} s  {why[:80]}"
        for name, outcome, seconds, why in outcomes
    )
