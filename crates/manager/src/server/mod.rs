//! The core thread: everything that happens to the core happens here, one thing at a time.

mod accept;
mod admin;
mod effects;
mod evidence;
mod greeting;
mod receive;
mod requests;
mod resets;
mod scrub;
mod send;
mod timers;

use crate::Rate;
use crate::admin::AdminRequest;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::connection::Connection;
use crate::lease_clock::LeaseClock;
use crate::poller::{Poller, Ready, Token};
use crate::pool::Pool;
use crate::processes::Processes;
use crate::scrub::{Pace, Scrubber};
use crate::sessions::Sessions;
use crate::tally::{CloseReason, Tally};
use crate::tier::{Tier, TierParts};
use crate::waker::Waker;
use orbitkv_core::{BlockHash, Config, ConfigError, Core, Effect, Micros};
use orbitkv_wire::{Part, RecoveredItem};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes taken from one connection at once.
const READ_BYTES: usize = 64 << 10;

/// A connection's turn ends with the frame that is being handled when this is over. What it sent beyond that waits
/// until the others have had theirs, so that a small question is not answered after all of a large one's parts.
const TURN: Duration = Duration::from_micros(10);

/// How long the core thread looks for more work before it sleeps, while requests are dense: one follows
/// within twice that time, which leaves room for a wake.
const AWAKE: Duration = Duration::from_micros(50);
const DENSE: Duration = Duration::from_micros(100);

/// Why the core thread could not start, or ended early.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The limits contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A system call failed without which nothing can be served.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: &'static str,
        /// The answer.
        source: io::Error,
    },
}

/// What the core thread needs from the outside.
pub(crate) struct Parts {
    pub(crate) config: Config,
    /// How fast memory is checked, if it is.
    pub(crate) scrub_rate: Option<Rate>,
    /// There is one if the configuration has a tier.
    pub(crate) tier: TierParts,
    pub(crate) claim: Claim,
    pub(crate) listener: UnixListener,
    /// Becomes readable at a signal to stop.
    pub(crate) signals: UnixStream,
    pub(crate) admin: Receiver<AdminRequest>,
    pub(crate) waker: Waker,
    /// Where HTTP is served.
    pub(crate) http: Option<SocketAddr>,
    /// Random identity of this run.
    pub(crate) boot: u128,
}

/// Buffers that are used again and again.
#[derive(Default)]
struct Scratch {
    read: Vec<u8>,
    payload: Vec<u8>,
    parts: Vec<Part>,
    ranges: Vec<RecoveredItem>,
    statuses: Vec<u8>,
    hashes: Vec<BlockHash>,
    effects: Vec<Effect>,
}

/// The manager at work.
pub(crate) struct Server {
    core: Core,
    clock: Clock,
    boot: u128,
    http: Option<SocketAddr>,
    claim: Claim,
    poller: Poller,
    waker: Waker,
    listener: Option<UnixListener>,
    /// The listener is not watched before this time: the process had no room for another connection.
    accept_after: Option<Micros>,
    signals: UnixStream,
    admin: Receiver<AdminRequest>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    sessions: Sessions,
    processes: Processes,
    pool: Pool,
    tier: Option<Tier>,
    scrub_rate: Option<Rate>,
    scrubber: Option<Scrubber>,
    /// When to look whether the tier moves; set while somebody waits for it.
    watch_tier_at: Option<Micros>,
    /// Resets that are not recorded yet, oldest first.
    resets: VecDeque<resets::Unrecorded>,
    tally: Tally,
    leases: LeaseClock,
    /// Connections without a hello, oldest first.
    greetings: VecDeque<(Micros, u64)>,
    /// Connections that send their last replies, oldest first.
    farewells: VecDeque<(Micros, u64)>,
    /// Connections to close before anything else happens.
    doomed: VecDeque<(u64, CloseReason)>,
    /// Segments that could not even be asked for; the core is told at the end of the turn.
    failed_growths: Vec<u32>,
    /// Connections whose turn ended with whole frames left, in the order of their next turns.
    unfinished: VecDeque<u64>,
    /// Connections with something to send.
    dirty: Vec<u64>,
    /// When the last connection is closed at the latest; set by the signal to stop.
    drain_until: Option<Micros>,
    /// The last request came soon after the one before it.
    requests_are_dense: bool,
    /// Said once that processes cannot be watched.
    said_unwatchable: bool,
    scratch: Scratch,
    #[cfg(feature = "test-hooks")]
    parked: crate::hooks::Parked,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Result<Self, ServerError> {
        let failed = |what| move |source| ServerError::Io { what, source };
        let poller = Poller::new().map_err(failed("epoll"))?;
        parts.listener.set_nonblocking(true).map_err(failed("the listening socket"))?;
        parts.signals.set_nonblocking(true).map_err(failed("the signal pipe"))?;
        poller.add(&parts.listener, Token::Listener).map_err(failed("epoll"))?;
        poller.add(&parts.signals, Token::Signal).map_err(failed("epoll"))?;
        poller.add(&parts.waker, Token::Wake).map_err(failed("epoll"))?;
        let pool = Pool::start(parts.waker.clone()).map_err(failed("the pool thread"))?;
        let tier = Tier::start(parts.tier, &parts.waker).map_err(failed("the tier thread"))?;
        let pace = parts.scrub_rate.map(|rate| Pace::new(rate, parts.config.pool_bytes));
        let scrubber = pace.map(|pace| Scrubber::start(pace, parts.waker.clone())).transpose();
        let scrubber = scrubber.map_err(failed("the thread that checks memory"))?;
        #[cfg(feature = "test-hooks")]
        let parked = crate::hooks::Parked::new(parts.waker.clone());
        Ok(Self {
            core: Core::new(parts.config)?,
            clock: Clock::new(),
            boot: parts.boot,
            http: parts.http,
            claim: parts.claim,
            poller,
            waker: parts.waker,
            listener: Some(parts.listener),
            accept_after: None,
            signals: parts.signals,
            admin: parts.admin,
            connections: BTreeMap::new(),
            next_connection: 0,
            sessions: Sessions::default(),
            processes: Processes::default(),
            pool,
            tier,
            scrub_rate: parts.scrub_rate,
            scrubber,
            watch_tier_at: None,
            resets: VecDeque::new(),
            tally: Tally::default(),
            leases: LeaseClock::default(),
            greetings: VecDeque::new(),
            farewells: VecDeque::new(),
            doomed: VecDeque::new(),
            failed_growths: Vec::new(),
            unfinished: VecDeque::new(),
            dirty: Vec::new(),
            drain_until: None,
            requests_are_dense: false,
            said_unwatchable: false,
            scratch: Scratch { read: vec![0; READ_BYTES], ..Scratch::default() },
            #[cfg(feature = "test-hooks")]
            parked,
        })
    }

    /// Serves until a signal to stop, then until every client has its replies or a second has passed, and
    /// the tier has written what it should.
    pub(crate) fn run(mut self) -> Result<(), ServerError> {
        let mut ready = Vec::new();
        while !self.drained() {
            self.await_events(&mut ready)?;
            for one in &ready {
                self.handle(*one);
                self.settle();
                self.flush_dirty();
            }
            // One turn, then whoever has become ready meanwhile.
            if let Some(id) = self.unfinished.pop_front() {
                self.take_turn(id);
                self.settle();
                self.flush_dirty();
            }
            self.expire();
            self.settle();
            self.flush_dirty();
        }
        // Our socket is claimed until then: a manager that comes now is told so, and not half of it.
        if let Some(tier) = self.tier.take() {
            tier.close();
        }
        Ok(())
    }

    /// Sleeps until there is something to do. Right after work it first looks for more without sleeping,
    /// while requests come that fast: to be woken takes longer than to answer most of them.
    fn await_events(&mut self, ready: &mut Vec<Ready>) -> Result<(), ServerError> {
        let failed = |source| ServerError::Io { what: "epoll_wait", source };
        if !self.unfinished.is_empty() {
            return self.poller.wait(Some(Duration::ZERO), ready).map_err(failed);
        }
        let idle_since = Instant::now();
        while self.requests_are_dense && idle_since.elapsed() < AWAKE {
            self.poller.wait(Some(Duration::ZERO), ready).map_err(failed)?;
            if !ready.is_empty() {
                return Ok(());
            }
            // Whoever is to ask may need this very processor.
            std::thread::yield_now();
        }
        let timeout = self.timeout();
        self.poller.wait(timeout, ready).map_err(failed)?;
        self.requests_are_dense = !ready.is_empty() && idle_since.elapsed() < DENSE;
        Ok(())
    }

    fn handle(&mut self, ready: Ready) {
        match ready.token {
            Token::Listener => self.accept(),
            Token::Signal => self.begin_drain(),
            Token::Wake => self.wake(),
            Token::Process(id) => self.process_exited(id),
            Token::Connection(id) => {
                if ready.writable {
                    self.flush(id);
                }
                if ready.readable {
                    self.receive(id);
                }
            }
        }
    }

    /// Another thread of ours has something.
    fn wake(&mut self) {
        self.waker.clear();
        self.take_grown();
        self.take_done();
        self.take_scrubbed();
        self.take_admin();
        #[cfg(feature = "test-hooks")]
        self.send_parked();
    }

    /// Stops accepting and lets every connection send what it has.
    fn begin_drain(&mut self) {
        let second = self.drain_until.is_some();
        let _ = io::Read::read(&mut &self.signals, &mut [0; 16]);
        if second {
            self.drain_until = Some(self.clock.now());
            return;
        }
        tracing::info!(sessions = self.sessions.open(), "draining");
        if let Some(listener) = self.listener.take() {
            let _ = self.poller.remove(&listener);
        }
        self.claim.remove_socket();
        self.drain_until = Some(self.clock.now().plus_ms(timers::FAREWELL_MS));
        let all: Vec<_> = self.connections.keys().copied().collect();
        for id in all {
            self.close_after_replies(id, CloseReason::Drain);
        }
    }

    fn drained(&self) -> bool {
        self.drain_until.is_some_and(|end| self.connections.is_empty() || end <= self.clock.now())
    }
}
