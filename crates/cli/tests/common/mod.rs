//! A bin directory with the real `orbitkv` and stand-ins for the programs around it, as an installed wheel
//! would have them.

// Each test file uses its part of it; helpers of tests may stop a test.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far longer than anything here takes; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything one test needs.
pub(crate) struct World {
    dir: tempfile::TempDir,
    run: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        // Hard links and symbolic ones, no copies: a file that is being written while another test forks
        // cannot be executed for a moment.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // The path of a socket must be short.
        let run = tempfile::tempdir().unwrap();
        let world = Self { dir, run };
        fs::create_dir(world.bin()).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_orbitkv"), world.bin().join("orbitkv")).unwrap();
        world.link("fakes/engine.py", "vllm");
        world.link("fakes/manager.py", "orbitkv-cache-manager");
        world.link("status.json", "status.json");
        // No engine and no session: what the file holds is for tests of what is shown.
        world.report(r#"{"instances": [], "sessions": {"open": 0, "unfinished": 0}}"#);
        world
    }

    /// Puts a file of the tests into the bin directory under this name.
    pub(crate) fn link(&self, file: &str, name: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
        std::os::unix::fs::symlink(file, self.bin().join(name)).unwrap();
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// Of the user.
    pub(crate) fn home(&self) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap()
    }

    /// A manager that no run has started: its note is not where a run would look for it.
    pub(crate) fn manager_alone(&self) -> Alone {
        fs::create_dir_all(self.socket().parent().unwrap()).unwrap();
        let note = self.run.path().join("note.json");
        let mut command = Command::new(self.bin().join("orbitkv-cache-manager"));
        command.arg("--socket").arg(self.socket()).args(["--http-addr", "127.0.0.1:0", "--ready-file"]);
        let child = command.arg(&note).stdin(Stdio::null()).spawn().unwrap();
        wait_until("the manager serves", || note.exists());
        Alone(child)
    }

    /// Where it serves HTTP.
    pub(crate) fn http_alone(&self) -> String {
        let note = fs::read_to_string(self.run.path().join("note.json")).unwrap();
        let note: serde_json::Value = serde_json::from_str(&note).unwrap();
        note["http"].as_str().unwrap().to_owned()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run.path().join("run/manager.sock")
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
        command.env("FAKE_ENGINE", behaviour);
        command
    }

    /// Process ids of all managers that have been ready.
    pub(crate) fn managers(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.bin().join("started")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// Ends with the test.
pub(crate) struct Alone(Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
