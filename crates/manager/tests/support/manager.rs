//! The process under test.

use super::{PATIENCE, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A serving manager; killed when the test ends.
pub struct Manager {
    child: Child,
    pub dir: TempDir,
    pub socket: PathBuf,
    pub http: String,
}

/// What a manager left behind that did not serve.
#[derive(Debug)]
pub struct Exit {
    pub code: Option<i32>,
    pub stderr: String,
}

/// The program with a socket in `dir`.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv-cache-manager"));
    command.arg("--socket").arg(dir.join("manager.sock")).stdin(Stdio::null());
    command
}

/// Runs a manager that is expected to refuse its flags. Flags given twice are errors, so a test that
/// tries a value of `--http-addr` gives it itself.
pub fn run_to_end(dir: &Path, flags: &[&str]) -> Exit {
    let mut child = command(dir).args(flags).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            // One that serves would outlive the test.
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a manager that should refuse {flags:?} has not ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Exit { code: status.code(), stderr }
}

impl Manager {
    pub fn start() -> Self {
        Self::start_with(&["--pool-size", "16mib"])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), flags)
    }

    pub fn start_in(dir: TempDir, flags: &[&str]) -> Self {
        let ready_file = dir.path().join("ready.json");
        let log = File::create(dir.path().join("log")).unwrap();
        // Most tests save pages with checksums that are not theirs, or look at memory page by page.
        let unscrubbed = if flags.contains(&"--scrub-rate") { &[][..] } else { &["--scrub-rate", "0"] };
        let child = command(dir.path())
            .args(["--http-addr", "127.0.0.1:0", "--ready-file"])
            .arg(&ready_file)
            .args(unscrubbed)
            .args(flags)
            .env("ORBITKV_TEST_DIR", dir.path())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut manager = Self { child, socket: dir.path().join("manager.sock"), dir, http: String::new() };
        let ready = wait_for("the ready file", || {
            if let Some(status) = manager.child.try_wait().unwrap() {
                panic!("manager ended with {status}: {}", manager.log());
            }
            // One that a crashed manager left is not this one's.
            let ready: Value = serde_json::from_slice(&fs::read(&ready_file).ok()?).unwrap();
            (ready["pid"] == manager.child.id()).then_some(ready)
        });
        assert_eq!(ready["socket"], manager.socket.to_str().unwrap());
        ready["http"].as_str().unwrap().clone_into(&mut manager.http);
        manager
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Status code and body.
    pub fn http(&self, method: &str, path: &str, headers: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub fn status(&self) -> Value {
        let (code, body) = self.http("GET", "/status", "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Value of each sample, by its name with labels.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let (code, body) = self.http("GET", "/metrics", "");
        assert_eq!(code, 200, "{body}");
        let samples = body.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    /// Every byte that somebody owns or may touch. Zero once all is drained.
    pub fn held_bytes(&self) -> u64 {
        let status = self.status();
        let of = |pointer: &str| status.pointer(pointer).unwrap().as_u64().unwrap();
        of("/query/reserved_bytes")
            + of("/save/inflight_bytes")
            + of("/load/inflight_bytes")
            + of("/pool/quarantined_bytes")
            + of("/query/leases")
            + of("/save/reservations")
    }

    /// Most memory it ever had resident, in bytes; pages of the pool included.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for its own end.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the end of the manager", || self.child.try_wait().unwrap())
    }

    /// Kills it, as a crash would, and returns its directory with what it left there.
    pub fn crash(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the manager:\n{}", self.log());
        }
    }
}
