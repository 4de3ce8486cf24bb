#!/usr/bin/env python3
"""Stands in for the cache manager: listens, answers /status with status.json, ends at SIGTERM.

What is in live.json replaces parts of the answer. FAKE_MANAGER: `fail` prints a reason and ends, `deaf`
never ends at SIGTERM, `never` is never ready. `config show` answers with what stands in the file: lines of
socket and http_addr, anything else is an unknown key.
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

def values_of(path):
    """The keys of a file of lines like KEY = "VALUE"; ends as the manager does for what it does not know."""
    values = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        key, _, value = line.partition(" = ")
        if key not in ("socket", "http_addr"):
            print('error: %s:%d: unknown key "%s"' % (path, number, key), file=sys.stderr)
            sys.exit(2)
        values[key] = value.strip('"')
    return values
if sys.argv[1:5] == ["config", "show", "--json", "--config"]:
    values = values_of(sys.argv[5])
    def shown(key):
        return {"value": values.get(key, "-"), "origin": {"kind": "file" if key in values else "default"}}
    print(json.dumps({"settings": {key: shown(key) for key in ("socket", "http_addr")}}))
    sys.exit(0)
p = argparse.ArgumentParser()
for flag in ("--socket", "--ready-file"):
    p.add_argument(flag, required=True)
for flag in ("--http-addr", "--pool-size", "--config", "--ssd-cache-path", "--ssd-cache-capacity"):
    p.add_argument(flag)
args = p.parse_args()
if args.config and args.http_addr is None:
    args.http_addr = values_of(args.config).get("http_addr")
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
(home / "flags.json").write_text(json.dumps(sys.argv[1:]))
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
