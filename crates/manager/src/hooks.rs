//! The hold point `query_reply`: while a test holds it, answers to queries wait here in order. With the
//! switch `query_reply_first` set to N at most N of them wait, and later ones overtake those. At the points
//! `ssd_read` and `ssd_write` the thread of a cache directory stands still, as at a disk that has hung up. The
//! switch `memory_tier_delay_ms` stands for the flag of that name from then on.

use crate::waker::Waker;
use orbitkv_core::{OperationId, OperationOutcome, Revision, SessionId};
use orbitkv_store::Direction;
use std::collections::VecDeque;
use std::time::Duration;

const POINT: &str = "query_reply";
const FIRST: &str = "query_reply_first";

const TIER_DELAY: &str = "memory_tier_delay_ms";

/// How long each job of the memory tier takes, where a test says so.
pub(crate) fn tier_delay() -> Option<Duration> {
    orbitkv_holds::switch(TIER_DELAY).and_then(|ms| ms.parse().ok()).map(Duration::from_millis)
}

pub(crate) type Answer = (SessionId, OperationId, Revision, OperationOutcome);

/// Before a page is given to the disk.
pub(crate) fn before_disk(direction: Direction) {
    orbitkv_holds::wait_if_held(match direction {
        Direction::Read => "ssd_read",
        Direction::Write => "ssd_write",
    });
}

/// Answers that are held back.
#[derive(Debug)]
pub(crate) struct Parked(VecDeque<Answer>);

impl Parked {
    /// Wakes the core thread at every release.
    pub(crate) fn new(waker: Waker) -> Self {
        if let Err(error) = orbitkv_holds::start_from_env() {
            tracing::warn!(%error, "hold points cannot be reached");
        }
        if !orbitkv_holds::on_release(POINT, move || waker.wake()) {
            tracing::warn!("too many callbacks: held answers leave with the next answer only");
        }
        Self(VecDeque::new())
    }

    /// Takes one answer in and returns those that may be sent now.
    pub(crate) fn park(&mut self, answer: Answer) -> VecDeque<Answer> {
        if !orbitkv_holds::is_held(POINT) {
            self.0.push_back(answer);
            return self.take_released();
        }
        let most = orbitkv_holds::switch(FIRST).and_then(|most| most.parse().ok());
        if self.0.len() >= most.unwrap_or(usize::MAX) {
            return VecDeque::from([answer]);
        }
        self.0.push_back(answer);
        orbitkv_holds::note_reached(POINT);
        VecDeque::new()
    }

    /// All of them, unless the point is held.
    pub(crate) fn take_released(&mut self) -> VecDeque<Answer> {
        if orbitkv_holds::is_held(POINT) { VecDeque::new() } else { std::mem::take(&mut self.0) }
    }
}
