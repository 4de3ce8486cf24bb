//! The connection's part of a worker: what its beginning, its end and its fences do to copies.

use super::segments::Segment;
use super::state::Work;
use crate::link::Session;
use orbitkv_wire::Resume;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a lost connection's segments stay mapped, and restores of its tickets are taken, while nobody has been
/// told that its copies have ended. What a scheduler was promised before is asked for within milliseconds.
const GRACE: Duration = Duration::from_secs(5);

/// A connection that was lost. Its leases stand, as the manager knows it, until this worker says that its copies have
/// ended, or for good if the manager is gone: nobody else writes to those pages.
pub(super) struct Departed {
    pub(super) session: Session,
    pub(super) segments: HashMap<u32, Segment>,
    pub(super) since: Instant,
}

impl Work {
    /// The connection's welcome.
    pub(super) fn welcome(&self, session: Session) {
        let mut inner = self.lock();
        match inner.last {
            Some(last) if last.boot == session.boot => {
                if !inner.attested_in_hello {
                    inner.unattested.insert(last.number);
                }
                let mut said = std::mem::take(&mut inner.said);
                inner.unattested.append(&mut said);
            }
            // That manager is gone, and with it every account of ours.
            _ => {
                inner.unattested.clear();
                inner.said.clear();
                inner.fenced_through = 0;
            }
        }
        inner.session = Some(session);
        inner.last = Some(session);
        drop(inner);
        self.signal.raise();
    }

    /// The session ended. Restores go on, from pages that stay in custody; saves can never be committed.
    pub(super) fn disconnected(&self) {
        let mut inner = self.lock();
        inner.fences.clear();
        self.stop_saves(&mut inner, |_| true);
        if let Some(session) = inner.session.take() {
            let segments = std::mem::take(&mut inner.segments);
            inner.departed = Some(Departed { session, segments, since: Instant::now() });
        }
        drop(inner);
        self.signal.raise();
    }

    /// Forgets a lost connection whose time is over at `now`; how much it has left.
    pub(super) fn departed_for(&self, now: Instant) -> Option<Duration> {
        let mut inner = self.lock();
        let left = GRACE.saturating_sub(now.saturating_duration_since(inner.departed.as_ref()?.since));
        if !left.is_zero() && !inner.stopping {
            return Some(left);
        }
        let gone = inner.departed.take();
        drop(inner);
        self.forget_all(gone);
        None
    }

    /// What the next hello says of the last session.
    pub(super) fn resume(&self) -> Option<Resume> {
        let mut inner = self.lock();
        let last = inner.last?;
        // From here on no ticket of it is taken. Its copies hold their own segments.
        let gone = inner.departed.take();
        let copies_ended = !inner.live.contains_key(&last.number);
        inner.attested_in_hello = copies_ended;
        drop(inner);
        self.forget_all(gone);
        Some(Resume { session: last.number, copies_ended })
    }

    /// The manager asks that no copy for that scheduler session runs or starts.
    pub(super) fn fence_scheduler(&self, scheduler: u64) {
        let mut inner = self.lock();
        inner.fenced_through = inner.fenced_through.max(scheduler);
        if let Some(session) = inner.session {
            inner.fences.push((session.number, scheduler));
        }
        // Restores that run end by themselves; their pages are whole and stay in custody until then.
        self.stop_saves(&mut inner, |origin| !origin.probe && origin.scheduler <= scheduler);
        drop(inner);
        self.signal.raise();
    }
}
