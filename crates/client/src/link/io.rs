//! The connection's thread.

use super::backoff::Backoff;
use super::{FLUSH, Fds, Handler, Link, Session, connect};
use crate::clock::monotonic_us;
use orbitkv_shm::recv_with_fds;
use orbitkv_wire::{FrameReader, Header, Kind, ToClient};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 256 << 10;
/// How long a listener may keep silent. Without a limit the client of one that hangs would never see the
/// manager that takes its place on the same path.
const WELCOME_WAIT: Duration = Duration::from_secs(3);
/// Most descriptors taken from one read, and most kept for frames not yet complete.
const MAX_FDS: usize = 64;
const MAX_KEPT_FDS: usize = 256;

/// Why a connection ended.
enum End {
    /// Try again soon.
    Lost(String),
    /// The manager said no, or speaks something else: try again later.
    Rejected(String),
    /// The client is closed.
    Stopped,
}

/// Connects, serves, and connects again until the client is closed.
pub(super) fn run(link: &Link, handler: &dyn Handler) {
    let mut backoff = Backoff::new(monotonic_us() ^ u64::from(link.process) << 32);
    let mut epoch = 0;
    while !link.stopping() {
        epoch += 1;
        let mut connection = Connection::new(link, handler, epoch);
        // A defect in a handler costs this connection, never the engine.
        let end = catch_unwind(AssertUnwindSafe(|| connection.live()))
            .unwrap_or_else(|_| End::Rejected("internal error in the connection's thread".to_owned()));
        let welcomed = connection.session.is_some();
        drop(connection);
        link.connected.store(false, Ordering::Release);
        link.lock_out().detach();
        if welcomed {
            backoff.reset();
            let _ = catch_unwind(AssertUnwindSafe(|| handler.disconnected()));
        }
        let delay = match end {
            End::Stopped => break,
            End::Lost(text) => {
                link.set_status(text);
                backoff.next()
            }
            End::Rejected(text) => {
                link.set_status(text);
                backoff.rejected()
            }
        };
        sleep(link, delay);
    }
    link.set_status("closed".to_owned());
}

/// Sleeps, unless the client is closed meanwhile.
fn sleep(link: &Link, delay: Duration) {
    let until = Instant::now() + delay;
    while !link.stopping() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let mut fds = [PollFd::new(&link.wake, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timespec(left)));
        clear_wake(link);
    }
}

fn clear_wake(link: &Link) {
    let mut count = [0; 8];
    // Empty already: nothing to clear.
    let _ = rustix::io::read(&link.wake, &mut count);
}

fn timespec(duration: Duration) -> Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::from(duration.subsec_nanos()) }
}

struct Connection<'a> {
    link: &'a Link,
    handler: &'a dyn Handler,
    epoch: u32,
    session: Option<Session>,
    fds: Fds,
    buffer: Vec<u8>,
}

impl<'a> Connection<'a> {
    fn new(link: &'a Link, handler: &'a dyn Handler, epoch: u32) -> Self {
        Self { link, handler, epoch, session: None, fds: Fds::new(), buffer: Vec::new() }
    }

    /// One connection from beginning to end.
    fn live(&mut self) -> End {
        let socket = match connect::attempt(&self.link.socket) {
            Ok(socket) => Arc::new(socket),
            Err(text) => return End::Lost(text),
        };
        let mut hello = self.link.hello.clone();
        hello.epoch = self.epoch;
        hello.resume = self.handler.resume();
        let sent = hello.encode().map_err(|e| e.to_string()).and_then(|json| {
            self.link.lock_out().attach(Arc::clone(&socket), self.epoch, &json).map_err(|e| e.to_string())
        });
        if let Err(text) = sent {
            return End::Rejected(text);
        }
        self.link.set_status("connected; waiting for the manager's welcome".to_owned());
        self.buffer.resize(READ_BYTES, 0);
        let mut reader = FrameReader::default();
        let welcome_by = Instant::now() + WELCOME_WAIT;
        let end = loop {
            if self.link.stopping() {
                break End::Stopped;
            }
            if let Err(end) = self.turn(&socket, &mut reader, welcome_by) {
                break end;
            }
        };
        if matches!(end, End::Stopped) {
            self.flush(&socket);
        }
        end
    }

    /// Waits for something to do and does it.
    fn turn(&mut self, socket: &OwnedFd, reader: &mut FrameReader, welcome_by: Instant) -> Result<(), End> {
        let now = Instant::now();
        let next = if self.session.is_some() { self.handler.timer(now) } else { Some(welcome_by) };
        if self.session.is_none() && now >= welcome_by {
            let (shown, waited_s) = (self.link.socket.display(), WELCOME_WAIT.as_secs());
            return Err(End::Lost(format!("no answer at {shown} for {waited_s} s (trying again)")));
        }
        let (left, broken) = {
            let out = self.link.lock_out();
            (out.left(), out.is_broken())
        };
        if broken {
            return Err(End::Lost("the manager stopped reading".to_owned()));
        }
        let interest = if left > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [PollFd::new(socket, interest), PollFd::new(&self.link.wake, PollFlags::IN)];
        let timeout = next.map(|at| timespec(at.saturating_duration_since(now)));
        if let Err(error) = poll(&mut fds, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            return Err(End::Lost(format!("poll: {error}")));
        }
        let (ready, woken) = (fds[0].revents(), fds[1].revents());
        if woken.contains(PollFlags::IN) {
            clear_wake(self.link);
        }
        if ready.contains(PollFlags::OUT) {
            self.link.lock_out().drain();
        }
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read(socket, reader)?;
        }
        Ok(())
    }

    /// Takes what has come, once: the next turn takes the rest, so timers are never starved.
    fn read(&mut self, socket: &OwnedFd, reader: &mut FrameReader) -> Result<(), End> {
        let mut fds = Vec::new();
        let got = match recv_with_fds(socket.as_fd(), &mut self.buffer, &mut fds, MAX_FDS) {
            Ok(0) => return Err(End::Lost("the manager closed the connection (trying again)".to_owned())),
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(End::Lost(format!("the manager is gone: {error} (trying again)"))),
        };
        self.fds.extend(fds);
        reader.push(&self.buffer[..got]);
        loop {
            match reader.next_frame() {
                Ok(Some((header, kind, payload))) => self.frame(&header, kind, payload)?,
                Ok(None) => break,
                Err(error) => return Err(End::Rejected(error.to_string())),
            }
        }
        if self.fds.len() > MAX_KEPT_FDS {
            return Err(End::Rejected("descriptors without segments".to_owned()));
        }
        Ok(())
    }

    fn frame(&mut self, header: &Header, kind: Kind, payload: &[u8]) -> Result<(), End> {
        let message = ToClient::decode(kind, payload).map_err(|e| End::Rejected(e.to_string()))?;
        match (message, self.session) {
            (ToClient::Rejected { text }, _) => {
                let text: String = text.chars().take(1000).collect();
                Err(End::Rejected(format!("the manager refused: {text}")))
            }
            (ToClient::Welcome { boot }, None) => self.welcome(header.session.get(), boot),
            (ToClient::Welcome { .. }, Some(_)) => {
                Err(End::Rejected("the manager welcomed twice".to_owned()))
            }
            (_, None) => Err(End::Rejected(format!("{} before the welcome", kind.name()))),
            (_, Some(session)) if header.session.get() != session.number => {
                let (got, want) = (header.session.get(), session.number);
                Err(End::Rejected(format!("{} for session {got} on session {want}", kind.name())))
            }
            (message, Some(_)) => self.handler.message(header, message, &mut self.fds).map_err(End::Rejected),
        }
    }

    fn welcome(&mut self, number: u64, boot: u128) -> Result<(), End> {
        if number == 0 {
            return Err(End::Rejected("the manager gave session 0".to_owned()));
        }
        let session = Session { number, epoch: self.epoch, boot, welcomed_us: monotonic_us() };
        self.session = Some(session);
        // The handler first: what it sends in its welcome is the first thing on the session.
        self.link.lock_out().welcome(session);
        self.handler.welcome(session);
        self.link.welcomed();
        Ok(())
    }

    /// Gives the last messages a bounded time to leave.
    fn flush(&self, socket: &OwnedFd) {
        let until = Instant::now() + FLUSH;
        loop {
            let left = {
                let mut out = self.link.lock_out();
                out.drain();
                if out.is_broken() { 0 } else { out.left() }
            };
            let time = until.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(socket, PollFlags::OUT)];
            let _ = poll(&mut fds, Some(&timespec(time)));
        }
    }
}
