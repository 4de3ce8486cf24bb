//! A bin directory with the real `orbitkv` and stand-ins for the programs around it, as an installed wheel
//! would have them.

// Each test file uses its part of it; helpers of tests may stop a test.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far longer than anything here takes; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints its arguments and environment names, then does as `FAKE_VLLM` says: `exit N`, `sleep`, or
/// `trap`, which ends with code 7 at the first SIGTERM or SIGINT.
const VLLM: &str = r#"#!/usr/bin/env python3
import json, os, signal, sys, time
signals = []
def noted(number, frame):
    signals.append(number)
todo = os.environ.get("FAKE_VLLM", "exit 0").split()
if todo[0] == "trap":
    signal.signal(signal.SIGTERM, noted)
    signal.signal(signal.SIGINT, noted)
    signal.signal(signal.SIGHUP, noted)
print(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "environment": sorted(os.environ)}), flush=True)
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
"#;

/// Listens, answers `/status` with tests/status.json under its own pid, ends at SIGTERM. `FAKE_MANAGER`:
/// `fail` prints a reason and ends; `deaf` never ends at SIGTERM.
const MANAGER: &str = r#"#!/usr/bin/env python3
import argparse, http.server, json, os, pathlib, signal, socket, sys, threading
p = argparse.ArgumentParser()
for flag in ("--socket", "--http-addr", "--pool-size", "--ready-file"):
    p.add_argument(flag, required=True)
args = p.parse_args()
mode = os.environ.get("FAKE_MANAGER", "")
if mode == "fail":
    print("error: --pool-size is too large for this machine", file=sys.stderr)
    sys.exit(2)
home = pathlib.Path(__file__).parent
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
"#;

/// Everything one test needs.
pub(crate) struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = Self { dir };
        fs::create_dir(world.bin()).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_orbitkv"), world.bin().join("orbitkv")).unwrap();
        for (name, text) in [("vllm", VLLM), ("orbitkv-cache-manager", MANAGER)] {
            let path = world.bin().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // No engine and no session: what the file holds is for tests of what is shown.
        world.report(r#"{"instances": [], "sessions": {"open": 0, "unfinished": 0}}"#);
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/status.json"), world.bin().join("status.json"))
            .unwrap();
        world
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("run/manager.sock")
    }

    /// What the manager's report says from now on, beside its fixed rest.
    pub(crate) fn report(&self, json: &str) {
        let partial = self.bin().join("live.partial");
        fs::write(&partial, json).unwrap();
        fs::rename(partial, self.bin().join("live.json")).unwrap();
    }

    pub(crate) fn without_manager(self) -> Self {
        fs::remove_file(self.bin().join("orbitkv-cache-manager")).unwrap();
        self
    }

    /// `orbitkv` with these words, in an environment of its own.
    pub(crate) fn orbitkv(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.bin().join("orbitkv"));
        command.args(words).env_clear().env("ORBITKV_SOCKET", self.socket()).env("HOME", self.dir.path());
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.bin().display());
        command.env("PATH", path).stdin(Stdio::null());
        command
    }

    /// `orbitkv run` with a manager on a free port.
    pub(crate) fn run(&self, engine: &[&str], behaviour: &str) -> Command {
        let mut words = vec!["run", "--http-addr", "127.0.0.1:0"];
        words.extend(engine);
        let mut command = self.orbitkv(&words);
        command.env("FAKE_VLLM", behaviour);
        command
    }

    /// Process ids of all managers that have been ready.
    pub(crate) fn managers(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.bin().join("started")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whatever a test left running: these were started here and by nobody else.
        for pid in self.managers().into_iter().filter(|pid| is_alive(*pid)) {
            signal(pid, "KILL");
        }
    }
}

/// A run in the background.
pub(crate) struct Background {
    pub(crate) child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Background {
    /// Starts it and waits until the engine has said its first line.
    pub(crate) fn start(mut command: Command) -> (Self, serde_json::Value) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut background = Self { child, lines };
        let first = background.next_line();
        (background, first)
    }

    pub(crate) fn next_line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Exit code and standard error.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        wait_until("the run ends", || self.child.try_wait().unwrap().is_some());
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(done.success(), "kill -s {name} {pid}");
}

/// Whether the process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next())
        .is_some_and(|state| state != 'Z')
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn text(output: &Output) -> (String, String) {
    let of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (of(&output.stdout), of(&output.stderr))
}

/// What the engine said first.
pub(crate) fn said(output: &Output) -> serde_json::Value {
    let (out, err) = text(output);
    serde_json::from_str(out.lines().next().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}
