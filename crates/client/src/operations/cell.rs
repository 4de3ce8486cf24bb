//! What an engine thread polls: process memory, one atomic load.

use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::ticket::{PagePart, Section};
use crate::waiters::Waiters;
use orbitkv_wire::WireMiss;
use std::time::{Duration, Instant};

/// State of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryState {
    /// No final state yet.
    Pending,
    /// Pages are leased.
    Ready,
    /// No pages; see [`MissReason`].
    Miss,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal => $text:literal,)+) => {
        /// Why a query has no pages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum MissReason { $($(#[$doc])* $name = $value,)+ }

        impl MissReason {
            pub(crate) fn from_u8(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$name),)+ _ => None }
            }

            /// Lower-case name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Not in the cache.
    Absent = 1 => "absent",
    /// A rank is missing or its self-test has not passed.
    Inactive = 2 => "inactive",
    /// The deadline passed.
    Deadline = 3 => "deadline",
    /// The operation lifetime passed.
    Lifetime = 4 => "lifetime",
    /// A limit of the manager or of this client.
    Limit = 5 => "limit",
    /// The lease was not handed out in time.
    Expired = 6 => "expired",
    /// Larger than its budget, and nothing of it fits now.
    Budget = 10 => "budget",
    /// No connection, or it was lost.
    Disconnected = 7 => "disconnected",
    /// The manager refused the request; the client's status says why.
    Refused = 8 => "refused",
    /// Released before an answer came.
    Released = 9 => "released",
}

impl From<WireMiss> for MissReason {
    fn from(reason: WireMiss) -> Self {
        match reason {
            WireMiss::Absent => Self::Absent,
            WireMiss::Inactive => Self::Inactive,
            WireMiss::Deadline => Self::Deadline,
            WireMiss::Lifetime => Self::Lifetime,
            WireMiss::Limit => Self::Limit,
            WireMiss::Expired => Self::Expired,
            WireMiss::Budget => Self::Budget,
        }
    }
}

/// Leased pages.
#[derive(Debug)]
pub(crate) struct Lease {
    /// One for a prefix; one for each cache group of a recovery.
    pub(crate) sections: Vec<Section>,
    /// Parts of one section after those of another, each page-major.
    pub(crate) parts: Vec<PagePart>,
    /// A recovery, which is handed out as a whole, be it of one group.
    pub(crate) recovery: bool,
}

impl Lease {
    pub(crate) fn pages(&self) -> usize {
        self.sections.iter().map(|section| section.pages as usize).sum()
    }

    /// Sections and parts of some of its pages: any range of a prefix, or the whole of a recovery.
    pub(crate) fn part(&self, first: usize, count: usize) -> Option<(Vec<Section>, Vec<PagePart>)> {
        let end = first.checked_add(count).filter(|end| count > 0 && *end <= self.pages())?;
        match &self.sections[..] {
            [prefix] if !self.recovery => {
                let (shards, pages) = (usize::from(prefix.shards), u32::try_from(count).ok()?);
                let parts = self.parts.get(first * shards..end * shards)?.to_vec();
                Some((vec![Section { pages, ..*prefix }], parts))
            }
            all => (count == self.pages()).then(|| (all.to_vec(), self.parts.clone())),
        }
    }
}

const PENDING: u8 = 0;
const READY: u8 = 1;
const MISS: u8 = 2;
/// Ready, and the workers have it.
const HANDED: u8 = 3;

/// Answer of one query.
#[derive(Debug)]
pub(crate) struct QueryCell {
    pub(crate) session: u64,
    pub(crate) boot: u128,
    /// Changes at most once, under the table's lock and before the query is ready.
    pub(super) operation: AtomicU64,
    pub(crate) group: u16,
    /// When the client itself gives up.
    pub(crate) deadline: Instant,
    state: AtomicU8,
    reason: AtomicU8,
    lease: OnceLock<Lease>,
    waiters: Waiters,
}

impl QueryCell {
    pub(crate) fn pending(
        (session, boot, operation): (u64, u128, u64),
        group: u16,
        deadline: Instant,
    ) -> Self {
        Self {
            session,
            boot,
            operation: AtomicU64::new(operation),
            group,
            deadline,
            state: AtomicU8::new(PENDING),
            reason: AtomicU8::new(0),
            lease: OnceLock::new(),
            waiters: Waiters::default(),
        }
    }

    /// A query that never left this process.
    pub(crate) fn missed(reason: MissReason) -> Self {
        let cell = Self::pending((0, 0, 0), 0, Instant::now());
        cell.miss(reason);
        cell
    }

    /// Its id on the session.
    pub(crate) fn operation(&self) -> u64 {
        self.operation.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> QueryState {
        match self.state.load(Ordering::Acquire) {
            PENDING => QueryState::Pending,
            MISS => QueryState::Miss,
            _ => QueryState::Ready,
        }
    }

    pub(crate) fn wait(&self, timeout: Duration) -> QueryState {
        self.waiters.wait(timeout, || self.state() == QueryState::Pending);
        self.state()
    }

    /// The lease, while it stands.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        if self.state() == QueryState::Ready { self.lease.get() } else { None }
    }

    pub(crate) fn reason(&self) -> Option<MissReason> {
        MissReason::from_u8(self.reason.load(Ordering::Acquire))
    }

    /// State or miss reason, for errors.
    pub(crate) fn describe(&self) -> &'static str {
        match self.state.load(Ordering::Acquire) {
            PENDING => "pending",
            HANDED => "restored already",
            READY => "ready",
            _ => self.reason().map_or("a miss", MissReason::name),
        }
    }

    /// Pending becomes ready; false if it is final already.
    pub(crate) fn ready(&self, lease: Lease) -> bool {
        if self.state.load(Ordering::Acquire) != PENDING || self.lease.set(lease).is_err() {
            return false;
        }
        self.waiters.change(|| self.swap(PENDING, READY))
    }

    /// Pending, or ready and not handed out, becomes a miss; false otherwise.
    pub(crate) fn miss(&self, reason: MissReason) -> bool {
        self.waiters.change(|| {
            let before = self.state.load(Ordering::Acquire);
            if before != PENDING && before != READY {
                return false;
            }
            self.reason.store(reason as u8, Ordering::Release);
            // A hand-out in between wins; the reason of a state that is no miss is not read.
            self.swap(before, MISS)
        })
    }

    /// Ready becomes handed out, once.
    pub(crate) fn hand_out(&self) -> bool {
        self.swap(READY, HANDED)
    }

    /// Handed out becomes a miss: the manager was not told.
    pub(crate) fn take_back(&self, reason: MissReason) {
        self.reason.store(reason as u8, Ordering::Release);
        self.waiters.change(|| self.swap(HANDED, MISS));
    }

    fn swap(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Whether a reset has been carried out.
#[derive(Debug, Default)]
pub(crate) struct ResetCell {
    done: AtomicBool,
    waiters: Waiters,
}

impl ResetCell {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        self.waiters.wait(timeout, || !self.is_done());
        self.is_done()
    }

    pub(crate) fn finish(&self) {
        self.waiters.change(|| self.done.store(true, Ordering::Release));
    }
}

#[cfg(all(test, loom))]
mod models;
