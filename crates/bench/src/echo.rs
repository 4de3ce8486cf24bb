//! The floor of every question to another process: as many bytes there and back, and nothing done.
//!
//! Both sides run on one processor. That is the fastest they can be: neither has to wake an idle one, which
//! alone takes as long as the whole exchange. Left to itself the kernel keeps them there in some runs and
//! not in others, and the limit would differ fourfold.

use crate::child::Process;
use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// A server in a process of its own, and the connection to it.
pub(crate) struct Echo {
    stream: UnixStream,
    request: Vec<u8>,
    reply: Vec<u8>,
    _process: Process,
}

impl Echo {
    /// Connects to a new server that takes and returns that many bytes.
    pub(crate) fn start(dir: &Path, request_bytes: usize, reply_bytes: usize) -> Result<Self> {
        let socket = dir.join(format!("echo-{request_bytes}.sock"));
        let sizes = [request_bytes.to_string(), reply_bytes.to_string()];
        let args = ["echo".as_ref(), socket.as_os_str(), sizes[0].as_ref(), sizes[1].as_ref()];
        let process = Process::start(&args, &socket)?;
        let stream = UnixStream::connect(&socket).context("cannot connect to the echo server")?;
        Ok(Self { stream, request: vec![1; request_bytes], reply: vec![0; reply_bytes], _process: process })
    }

    /// Runs `round` on the server's processor.
    pub(crate) fn beside<T>(&mut self, round: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, &one_of(&before)?)?;
        let done = round(self);
        sched_setaffinity(None, &before)?;
        done
    }

    /// One request and its reply.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stream.write_all(&self.request)?;
        Ok(self.stream.read_exact(&mut self.reply)?)
    }
}

/// The lowest of these processors alone: the same one in both processes.
fn one_of(allowed: &CpuSet) -> Result<CpuSet> {
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).context("no processor is allowed")?;
    let mut one = CpuSet::new();
    one.set(first);
    Ok(one)
}

/// The server: `SOCKET REQUEST_BYTES REPLY_BYTES`. Ends with its only connection.
pub(crate) fn serve(args: &[OsString]) -> Result<()> {
    let [socket, request_bytes, reply_bytes] = args else {
        anyhow::bail!("echo takes a socket, the bytes of a request and those of a reply");
    };
    let bytes = |text: &OsString| text.to_str().and_then(|t| t.parse().ok()).context("a number of bytes");
    let (mut request, reply) = (vec![0; bytes(request_bytes)?], vec![2; bytes(reply_bytes)?]);
    // Under another name until it listens: the name is the sign that a client may connect.
    let early = Path::new(socket).with_extension("early");
    let listener = UnixListener::bind(&early)?;
    std::fs::rename(&early, socket)?;
    let (mut stream, _) = listener.accept()?;
    sched_setaffinity(None, &one_of(&sched_getaffinity(None)?)?)?;
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => stream.write_all(&reply)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
