#!/usr/bin/env python3
"""Stands in for the cache manager: listens, answers /status with status.json, ends at SIGTERM.

What is in live.json replaces parts of the answer. FAKE_MANAGER: `fail` prints a reason and ends, `deaf`
never ends at SIGTERM, `never` is never ready.
"""

import argparse
import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time

p = argparse.ArgumentParser()
for flag in ("--socket", "--http-addr", "--pool-size", "--ready-file"):
    p.add_argument(flag, required=True)
args = p.parse_args()
mode = os.environ.get("FAKE_MANAGER", "")
if mode == "fail":
    print("error: --pool-size is too large for this machine", file=sys.stderr)
    sys.exit(2)
home = pathlib.Path(__file__).parent
if mode == "never":
    (home / "started").write_text("%d\n" % os.getpid())
    time.sleep(60)
report = json.loads((home / "status.json").read_text())
report["pid"] = os.getpid()
report["pool_size_flag"] = args.pool_size
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        live = home / "live.json"
        body = {**report, **(json.loads(live.read_text()) if live.exists() else {})}
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
host, port = args.http_addr.rsplit(":", 1)
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    os.unlink(args.socket)
except FileNotFoundError:
    pass
listener = socket.socket(socket.AF_UNIX)
listener.bind(args.socket)
listener.listen(64)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else lambda *_: os._exit(0))
ready = pathlib.Path(args.ready_file)
ready.with_suffix(".tmp").write_text(json.dumps(
    {"pid": os.getpid(), "socket": args.socket, "http": "%s:%d" % server.server_address}))
ready.with_suffix(".tmp").rename(ready)
with (home / "started").open("a") as log:
    log.write("%d\n" % os.getpid())
while True:
    connection, _ = listener.accept()
