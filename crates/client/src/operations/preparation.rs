//! One read ahead, as the engine sees it, and when it is kept or let go.

use super::MissReason;
use super::recovery::Kept;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use orbitkv_wire::KeepItem;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most unclaimed preparations of one client; the manager's own limit is the same by default.
pub(super) const MAX_PREPARATIONS: usize = 4;
/// Shortest time from one keep to the next.
const KEEP_EVERY: Duration = Duration::from_millis(250);
/// Without a poll for this long nobody wants it. The manager waits one second: the client is first, so a
/// claim hardly ever meets an operation that the manager has retired.
const LET_GO_AFTER: Duration = Duration::from_millis(900);

/// State of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparationState {
    /// Being read.
    Pending,
    /// Every page of it is in memory and leased.
    Prepared,
    /// It has ended, or was never begun; see [`MissReason`].
    Miss,
}

const PENDING: u8 = 0;
const PREPARED: u8 = 1;
const MISS: u8 = 2;

/// One preparation. It changes under the table's lock only; polls and looks take none.
#[derive(Debug)]
pub(crate) struct PreparationCell {
    pub(crate) session: u64,
    pub(super) boot: u128,
    pub(crate) operation: u64,
    pub(super) wants: Kept,
    begun: Instant,
    state: AtomicU8,
    reason: AtomicU8,
    pages: AtomicU32,
    /// From `begun` to the last poll; zero before the first.
    polled_us: AtomicU64,
    spent: AtomicBool,
}

impl PreparationCell {
    pub(super) fn pending((session, boot, operation): (u64, u128, u64), wants: Kept, begun: Instant) -> Self {
        Self {
            session,
            boot,
            operation,
            wants,
            begun,
            state: AtomicU8::new(PENDING),
            reason: AtomicU8::new(0),
            pages: AtomicU32::new(0),
            polled_us: AtomicU64::new(0),
            spent: AtomicBool::new(false),
        }
    }

    /// A preparation that never left this process.
    pub(super) fn missed(wants: Kept, reason: MissReason) -> Self {
        let cell = Self::pending((0, 0, 0), wants, Instant::now());
        cell.end(reason);
        cell
    }

    pub(crate) fn state(&self) -> PreparationState {
        match self.state.load(Ordering::Acquire) {
            PENDING => PreparationState::Pending,
            PREPARED => PreparationState::Prepared,
            _ => PreparationState::Miss,
        }
    }

    /// As `state`, and it is still wanted. The clock is read in user space.
    pub(crate) fn poll(&self) -> PreparationState {
        self.polled_us.store(micros(self.begun.elapsed()), Ordering::Relaxed);
        self.state()
    }

    pub(crate) fn pages(&self) -> u32 {
        if self.state() == PreparationState::Prepared { self.pages.load(Ordering::Relaxed) } else { 0 }
    }

    pub(crate) fn reason(&self) -> Option<MissReason> {
        if self.state() == PreparationState::Miss {
            MissReason::from_u8(self.reason.load(Ordering::Relaxed))
        } else {
            None
        }
    }

    pub(super) fn prepared(&self, pages: u32) {
        self.pages.store(pages, Ordering::Relaxed);
        self.state.store(PREPARED, Ordering::Release);
    }

    pub(super) fn end(&self, reason: MissReason) {
        self.reason.store(reason as u8, Ordering::Relaxed);
        self.state.store(MISS, Ordering::Release);
    }

    /// True for the first claim only.
    pub(super) fn spend(&self) -> bool {
        !self.spent.swap(true, Ordering::AcqRel)
    }

    fn polled(&self) -> Duration {
        Duration::from_micros(self.polled_us.load(Ordering::Relaxed))
    }

    fn let_go_at(&self) -> Instant {
        self.begun + self.polled() + LET_GO_AFTER
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
struct Live {
    cell: Arc<PreparationCell>,
    /// The last poll that the manager has been told of.
    told: Duration,
}

/// The unclaimed preparations of the present session.
#[derive(Debug, Default)]
pub(super) struct Preparations {
    live: BTreeMap<u64, Live>,
    /// Earliest time of the next keep; `None` while there is nothing to keep.
    next_keep: Option<Instant>,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Polled since they were last kept.
    pub(super) keep: Vec<KeepItem>,
    /// Not polled for too long; no longer among the live ones.
    pub(super) let_go: Vec<Arc<PreparationCell>>,
}

impl Preparations {
    pub(super) fn is_full(&self) -> bool {
        self.live.len() >= MAX_PREPARATIONS
    }

    /// Adds one; when to look at all of them next.
    pub(super) fn insert(&mut self, cell: &Arc<PreparationCell>) -> Instant {
        self.live.insert(cell.operation, Live { cell: Arc::clone(cell), told: Duration::ZERO });
        *self.next_keep.get_or_insert(cell.begun + KEEP_EVERY)
    }

    pub(super) fn get(&self, operation: u64) -> Option<&Arc<PreparationCell>> {
        self.live.get(&operation).map(|live| &live.cell)
    }

    pub(super) fn remove(&mut self, operation: u64) -> Option<Arc<PreparationCell>> {
        let removed = self.live.remove(&operation).map(|live| live.cell);
        if self.live.is_empty() {
            self.next_keep = None;
        }
        removed
    }

    /// Removes this one; false if it is not live. Operation ids begin anew with each session.
    pub(super) fn take(&mut self, cell: &PreparationCell) -> bool {
        let same = self.get(cell.operation).is_some_and(|live| live.session == cell.session);
        same && self.remove(cell.operation).is_some()
    }

    pub(super) fn drain(&mut self) -> Vec<Arc<PreparationCell>> {
        let live = std::mem::take(self).live;
        live.into_values().map(|live| live.cell).collect()
    }

    /// What is due at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        let late: Vec<u64> =
            self.live.iter().filter(|(_, live)| live.cell.let_go_at() <= now).map(|(id, _)| *id).collect();
        due.let_go.extend(late.into_iter().filter_map(|id| self.remove(id)));
        if self.next_keep.is_some_and(|at| at <= now) {
            self.next_keep = Some(now + KEEP_EVERY);
            for (&operation, live) in &mut self.live {
                let polled = live.cell.polled();
                if polled > live.told {
                    live.told = polled;
                    due.keep.push(KeepItem {
                        operation: operation.into(),
                        revision: 1.into(),
                        zero: 0.into(),
                    });
                }
            }
        }
        due
    }

    /// When something may be due next; `None` while nothing is live.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let let_go = self.live.values().map(|live| live.cell.let_go_at());
        let_go.chain(self.next_keep).min()
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    fn wants() -> Kept {
        Kept::Prefix { group: 0, hashes: vec![[1; 32]] }
    }

    fn cell(operation: u64, begun: Instant) -> Arc<PreparationCell> {
        Arc::new(PreparationCell::pending((7, 1, operation), wants(), begun))
    }

    fn polled_at(cell: &PreparationCell, after_ms: u64) {
        cell.polled_us.store(after_ms * 1_000, Ordering::Relaxed);
    }

    fn kept(due: &Due) -> Vec<u64> {
        due.keep.iter().map(|item| item.operation.get()).collect()
    }

    #[test]
    fn only_polls_renew_and_one_batch_names_all_of_them() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (a, b, c) = (cell(1, start), cell(2, start), cell(3, start));
        let mut all = Preparations::default();
        for one in [&a, &b, &c] {
            assert_eq!(all.insert(one), at(250));
        }
        polled_at(&a, 10);
        polled_at(&c, 20);
        assert!(kept(&all.due(at(249))).is_empty(), "not before 250 ms");
        assert_eq!(kept(&all.due(at(250))), [1, 3]);
        assert!(kept(&all.due(at(499))).is_empty());
        assert!(kept(&all.due(at(500))).is_empty(), "nobody polled since");
        polled_at(&b, 600);
        assert_eq!(kept(&all.due(at(750))), [2]);
    }

    #[test]
    fn one_without_polls_is_let_go_at_900_ms_after_the_last() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (never, once) = (cell(1, start), cell(2, start));
        let mut all = Preparations::default();
        all.insert(&never);
        all.insert(&once);
        polled_at(&once, 300);
        assert!(all.due(at(899)).let_go.is_empty());
        assert_eq!(all.next_look(), Some(at(900)));
        let gone = all.due(at(900)).let_go;
        assert_eq!(gone.iter().map(|cell| cell.operation).collect::<Vec<_>>(), [1]);
        assert!(all.due(at(1_199)).let_go.is_empty());
        assert_eq!(all.due(at(1_200)).let_go.len(), 1);
        assert_eq!(all.next_look(), None, "nothing is looked at while nothing is live");
    }

    #[test]
    fn an_earlier_session_takes_nothing_from_this_one() {
        let start = Instant::now();
        let mut all = Preparations::default();
        all.insert(&cell(1, start));
        let earlier = PreparationCell::pending((6, 1, 1), wants(), start);
        assert!(!all.take(&earlier));
        assert!(all.take(&cell(1, start)));
        assert_eq!(all.next_look(), None);
    }
}
