//! The line protocol.

use crate::state;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest request line.
const MAX_LINE_BYTES: u64 = 4096;

/// Process that listens. After a fork the child has no listener thread and starts its own.
static LISTENING: Mutex<Option<u32>> = Mutex::new(None);

/// Listens on `$ORBITKV_TEST_DIR/<pid>.sock`, once a process; returns that path, or `None` where the
/// variable is not set.
///
/// # Errors
/// The directory does not exist, cannot be written, or its name is too long for a socket.
pub fn start_from_env() -> io::Result<Option<PathBuf>> {
    let Some(dir) = std::env::var_os("ORBITKV_TEST_DIR").filter(|dir| !dir.is_empty()) else {
        return Ok(None);
    };
    let path = Path::new(&dir).join(format!("{}.sock", std::process::id()));
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if *listening == Some(std::process::id()) {
        return Ok(Some(path));
    }
    start_at(&path)?;
    *listening = Some(std::process::id());
    Ok(Some(path))
}

pub(crate) fn start_at(path: &Path) -> io::Result<()> {
    // Left behind by an earlier process with this id.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    thread::Builder::new().name("orbitkv-holds".to_owned()).spawn(move || accept(&listener))?;
    Ok(())
}

fn accept(listener: &UnixListener) {
    for stream in listener.incoming() {
        // A test that goes away in mid-connection is its own business; a full descriptor table passes.
        let started = stream.and_then(|stream| {
            thread::Builder::new().name("orbitkv-holds-conn".to_owned()).spawn(move || serve(&stream))
        });
        if started.is_err() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn serve(stream: &UnixStream) {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    let mut line = String::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
            Ok(1..) if line.ends_with('\n') => {}
            _ => return,
        }
        let answer = answer(line.trim_end());
        if out.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(line: &str) -> String {
    let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let ok = |done: bool| {
        if done { "ok".to_owned() } else { "error: limit reached".to_owned() }
    };
    match command {
        "list" => state::list(),
        "hold" | "release" | "reached" | "set" if rest.is_empty() => {
            format!("error: {command} needs a name")
        }
        "hold" => ok(state::hold(rest)),
        "release" => {
            state::release(rest);
            ok(true)
        }
        "reached" => state::reached(rest).to_string(),
        "set" => match rest.split_once(' ') {
            Some((key, value)) => ok(state::set_switch(key, Some(value.trim()))),
            None => ok(state::set_switch(rest, None)),
        },
        _ => format!("error: unknown command {command:?}; hold, release, reached, set and list are known"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};

    /// One connection to a listener of its own; the state behind it is the process's.
    struct Remote {
        stream: BufReader<UnixStream>,
        _dir: tempfile::TempDir,
    }

    impl Remote {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("holds.sock");
            start_at(&path).unwrap();
            Self { stream: BufReader::new(UnixStream::connect(path).unwrap()), _dir: dir }
        }

        fn ask(&mut self, line: &str) -> String {
            self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
            let mut answer = String::new();
            self.stream.read_line(&mut answer).unwrap();
            answer.trim_end().to_owned()
        }

        fn wait_reached(&mut self, name: &str, count: u64) {
            while self.ask(&format!("reached {name}")) != count.to_string() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_held_point_stops_until_it_is_released() {
        let mut remote = Remote::new();
        assert_eq!(remote.ask("hold stop_here"), "ok");
        let (tx, rx) = mpsc::channel();
        let thread = thread::spawn(move || {
            state::wait_if_held("stop_here");
            tx.send(()).unwrap();
        });
        remote.wait_reached("stop_here", 1);
        assert_eq!(rx.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert_eq!(remote.ask("release stop_here"), "ok");
        thread.join().unwrap();
        rx.recv().unwrap();
        state::wait_if_held("stop_here");
        assert_eq!(remote.ask("reached stop_here"), "0", "counts only while held");
    }

    #[test]
    fn a_waiter_leaves_on_its_own_condition() {
        let mut remote = Remote::new();
        remote.ask("hold or_here");
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            state::wait_if_held_or("or_here", &|| flag.load(Ordering::Acquire));
        });
        remote.wait_reached("or_here", 1);
        assert!(!thread.is_finished());
        stop.store(true, Ordering::Release);
        thread.join().unwrap();
        assert!(state::is_held("or_here"));
        remote.ask("release or_here");
    }

    #[test]
    fn callbacks_run_at_every_release() {
        let mut remote = Remote::new();
        let calls = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&calls);
        assert!(state::on_release("called", move || {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        remote.ask("release called");
        remote.ask("hold called");
        remote.ask("release called");
        remote.ask("release another");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn switches_are_set_counted_down_and_removed() {
        let mut remote = Remote::new();
        assert_eq!(remote.ask("set fault zero"), "ok");
        assert_eq!(state::switch("fault").as_deref(), Some("zero"));
        assert!(remote.ask("list").contains("switch:fault=zero"));
        assert_eq!(remote.ask("set fault"), "ok");
        assert_eq!(state::switch("fault"), None);
        remote.ask("set nth 2");
        let fired: Vec<bool> = (0..4).map(|_| state::count_down("nth")).collect();
        assert_eq!(fired, [false, true, false, false]);
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let mut remote = Remote::new();
        assert!(remote.ask("hold").starts_with("error: hold needs a name"));
        assert!(remote.ask("grab x").starts_with("error: unknown command \"grab\""));
        let mut long = "x".repeat(MAX_LINE_BYTES as usize * 2);
        long.push('\n');
        // The connection ends instead of growing; the write itself may already fail.
        let _ = remote.stream.get_mut().write_all(long.as_bytes());
        let mut rest = String::new();
        assert!(matches!(remote.stream.read_line(&mut rest), Ok(0) | Err(_)));
        assert!(start_from_env().is_ok());
    }
}
