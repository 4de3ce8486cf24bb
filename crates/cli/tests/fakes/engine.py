#!/usr/bin/env python3
"""Stands in for an engine: prints its arguments and environment names, then does as FAKE_ENGINE says.

`exit N`, `kill N` (a signal to itself), or `trap`: ends with code 7 at the first signal and prints it.
"""

import json
import os
import signal
import sys
import time

signals = []
def noted(number, frame):
    signals.append(number)
todo = os.environ.get("FAKE_ENGINE", "exit 0").split()
if todo[0] == "trap":
    signal.signal(signal.SIGTERM, noted)
    signal.signal(signal.SIGINT, noted)
    signal.signal(signal.SIGHUP, noted)
said = {"argv": sys.argv[1:], "pid": os.getpid(), "environment": sorted(os.environ)}
print(json.dumps({**said, "socket": os.environ.get("ORBITKV_SOCKET")}), flush=True)
if todo[0] == "exit":
    sys.exit(int(todo[1]))
if todo[0] == "kill":
    os.kill(os.getpid(), int(todo[1]))
until = time.monotonic() + 60
while time.monotonic() < until and not signals:
    time.sleep(0.01)
time.sleep(0.2)
print(json.dumps({"signals": signals}), flush=True)
sys.exit(7)
