//! The connection to the manager: one thread, one socket, one bounded buffer out.

mod backoff;
mod connect;
mod inbound;
mod io;
mod nudge;
mod outbound;
mod sleeper;
mod wait;
mod watch;

use crate::registration::Registration;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{ClientError, Verify, hooks};
use inbound::{End, Inbound};
use nudge::Nudge;
use orbitkv_wire::{Header, Hello, HelloRole, Resume, ToClient, ToManager};
use outbound::Outbound;
use sleeper::Sleeper;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::Watch;

pub(crate) use outbound::{SendError, Urgency};

/// How long a closing client waits for the socket to take its last messages.
const FLUSH: Duration = Duration::from_millis(200);

/// One accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// Number given by the manager; never zero.
    pub(crate) number: u64,
    /// Epoch of the connection.
    pub(crate) epoch: u32,
    /// Run of the manager.
    pub(crate) boot: u128,
    /// Monotonic time at which the welcome was read.
    pub(crate) welcomed_us: u64,
}

/// The role's part of a connection; must not block. Called on the connection's thread, but `message` on
/// whichever thread owns the read side, and never again once `disconnected` is called. The lock of the
/// read side may be held, that of the buffer out never is.
pub(crate) trait Handler: Send + Sync + 'static {
    /// What to say of the session before this connection.
    fn resume(&self) -> Option<Resume>;
    /// The manager accepted. Nothing has been sent on this session yet.
    fn welcome(&self, session: Session);
    /// A message after the welcome. An error closes the connection.
    fn message(&self, header: &Header, message: ToClient<'_>, fds: &mut Fds) -> Result<(), String>;
    /// The session ended; nothing more is sent on it.
    fn disconnected(&self);
    /// Does what is due; returns when to call again.
    fn timer(&self, now: Instant) -> Option<Instant>;
}

/// Descriptors received and not yet claimed by their frame.
pub(crate) type Fds = VecDeque<OwnedFd>;

/// What engine threads, copy threads and the connection's own thread share.
pub(crate) struct Link {
    socket: PathBuf,
    hello: Hello,
    out: Mutex<Outbound>,
    /// The read side of the present connection.
    inbound: Mutex<Option<Inbound>>,
    /// What a thread other than the connection's found at the read side: the connection is over.
    found_end: Mutex<Option<End>>,
    /// The connection's thread waits for the read side, to close the connection.
    closing: AtomicBool,
    /// Another thread than the connection's sleeps until something is to be read.
    reader: Sleeper,
    /// Next waits in which that thread sleeps at once.
    awake_reads_to_skip: AtomicU32,
    /// Wakes that thread.
    nudge: Nudge,
    /// What the connection's thread sleeps on.
    watch: Watch,
    status: Mutex<String>,
    connected: AtomicBool,
    ever_connected: AtomicBool,
    /// Welcomes after the first one.
    reconnects: AtomicU64,
    stop: AtomicBool,
    /// A fork copies this value but none of its threads, and must not write into the parent's socket.
    process: u32,
}

impl Link {
    pub(crate) fn new(registration: &Registration, role: HelloRole, rank: u16) -> Result<Self, ClientError> {
        registration.check()?;
        hooks::start()?;
        let client = format!("{:032x}", random_u128()?);
        Ok(Self {
            socket: registration.socket.clone(),
            hello: registration.hello(role, rank, &client),
            out: Mutex::new(Outbound::default()),
            inbound: Mutex::new(None),
            found_end: Mutex::new(None),
            closing: AtomicBool::new(false),
            reader: Sleeper::default(),
            awake_reads_to_skip: AtomicU32::new(0),
            nudge: Nudge::new()?,
            watch: Watch::new()?,
            status: Mutex::new("connecting".to_owned()),
            connected: AtomicBool::new(false),
            ever_connected: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    /// Has the manager told which restored pages are compared.
    pub(crate) fn telling(mut self, verify: Verify) -> Self {
        self.hello.verify_restore = Some(verify.to_string());
        self
    }

    /// Starts the connection's thread.
    pub(crate) fn start(self: &Arc<Self>, handler: Arc<dyn Handler>) -> Result<LinkThread, ClientError> {
        let link = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("orbitkv-link".to_owned())
            .spawn(move || io::run(&link, &handler))
            .map_err(ClientError::system("cannot start the connection's thread"))?;
        Ok(LinkThread { link: Arc::clone(self), thread: Some(thread) })
    }

    /// Whether a manager has accepted the present connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// The present session.
    pub(crate) fn session(&self) -> Option<Session> {
        self.lock_out().session()
    }

    /// One line for people.
    pub(crate) fn status(&self) -> String {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// Sends one message of an existing operation (or of none) on `session`, if that is still the
    /// present one.
    pub(crate) fn send(
        &self,
        session: u64,
        (operation, revision): (u64, u32),
        message: &ToManager<'_>,
        urgency: Urgency,
    ) -> Result<(), SendError> {
        self.guard()?;
        let mut out = self.lock_out();
        let sent = out.send(session, operation, revision, message, urgency);
        self.after_send(&out, sent)
    }

    /// Opens an operation on the present session with the next id and sends its first message.
    pub(crate) fn open(&self, message: &ToManager<'_>) -> Result<(Session, u64), SendError> {
        self.guard()?;
        let mut out = self.lock_out();
        // Id and frame under one lock: the manager refuses an id below one it has seen.
        let opened = out.open(message);
        self.after_send(&out, opened)
    }

    /// Opens an operation for each message, in their order, and sends them together.
    pub(crate) fn open_all<'m>(
        &self,
        messages: impl Iterator<Item = ToManager<'m>>,
    ) -> Vec<Result<(Session, u64), SendError>> {
        if let Err(stale) = self.guard() {
            return messages.map(|_| Err(stale)).collect();
        }
        let mut out = self.lock_out();
        let opened = messages.map(|message| out.open_undrained(&message)).collect();
        out.drain();
        if out.wants_thread() {
            self.wake();
        }
        opened
    }

    /// Wakes the connection's thread, for a timer earlier than it knows.
    pub(crate) fn wake(&self) {
        self.watch.wake();
    }

    fn after_send<T>(&self, out: &Outbound, sent: Result<T, SendError>) -> Result<T, SendError> {
        if out.wants_thread() {
            self.wake();
        }
        sent
    }

    fn guard(&self) -> Result<(), SendError> {
        if self.process == std::process::id() { Ok(()) } else { Err(SendError::Stale) }
    }

    fn welcomed(&self) {
        if self.ever_connected.swap(true, Ordering::AcqRel) {
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        self.set_status(format!("connected to {}", self.socket.display()));
        self.connected.store(true, Ordering::Release);
    }

    fn set_status(&self, text: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn lock_out(&self) -> MutexGuard<'_, Outbound> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The read side, if no other thread owns it.
    fn try_inbound(&self) -> Option<MutexGuard<'_, Option<Inbound>>> {
        match self.inbound.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Called with the read side owned: the connection's thread is to close this connection.
    fn end_from_elsewhere(&self, end: End) {
        *self.found_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        self.wake();
    }

    fn take_found_end(&self) -> Option<End> {
        self.found_end.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// The connection's thread; ends with this value.
pub(crate) struct LinkThread {
    link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
}

impl LinkThread {
    /// Sends what is still queued, for a bounded time, and closes the connection. Idempotent.
    pub(crate) fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A forked child has the handle but not the thread.
        if self.link.guard().is_err() {
            return;
        }
        self.link.stop.store(true, Ordering::Release);
        self.link.wake();
        // A panic there has already been turned into a closed connection.
        let _ = thread.join();
    }
}

impl Drop for LinkThread {
    fn drop(&mut self) {
        self.close();
    }
}

/// 128 random bits.
pub(crate) fn random_u128() -> Result<u128, ClientError> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| ClientError::system("getrandom")(e.into()))?;
    debug_assert_eq!(got, bytes.len(), "requests up to 256 bytes are never cut short");
    Ok(u128::from_le_bytes(bytes))
}
