//! Everything that happens because time has passed.

use super::Server;
use crate::connection::Stage;
use crate::poller::Token;
use crate::scrub::Scrubber;
use crate::tally::CloseReason;
use orbitkv_core::{Event, Micros};
use std::collections::VecDeque;
use std::time::Duration;

/// A connection that has not said hello by then is closed.
pub(super) const GREETING_MS: u64 = 5_000;
/// The last replies must be read within this.
pub(super) const FAREWELL_MS: u64 = 1_000;
/// Pause after a connection could not be accepted.
pub(super) const ACCEPT_PAUSE_MS: u64 = 100;

impl Server {
    /// How long to wait for events; `None` when nothing is due. An idle manager sleeps.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let front = |queue: &VecDeque<(Micros, u64)>| queue.front().map(|(at, _)| *at);
        let due = [
            self.core.next_deadline(),
            front(&self.greetings),
            front(&self.farewells),
            self.accept_after,
            self.drain_until,
            self.watch_tier_at,
            self.scrubber.as_ref().and_then(Scrubber::due),
            self.resets_due(),
        ];
        due.into_iter().flatten().min().map(|at| self.clock.until(at))
    }

    pub(super) fn expire(&mut self) {
        let now = self.clock.now();
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.feed(Event::Tick);
        }
        if self.watch_tier_at.is_some_and(|at| at <= now) {
            self.watch_tier();
        }
        self.scrub();
        self.expire_resets(now);
        while let Some(id) = pop_due(&mut self.greetings, now) {
            if self.connections.get(&id).is_some_and(|c| c.stage == Stage::Greeting) {
                self.close(id, CloseReason::NoHello);
            }
        }
        while let Some(id) = pop_due(&mut self.farewells, now) {
            // Its reason was counted when the farewell began.
            self.close(id, CloseReason::SlowReader);
        }
        if self.accept_after.is_some_and(|at| at <= now) {
            self.accept_after = None;
            if let Some(listener) = &self.listener {
                let _ = self.poller.watch(listener, Token::Listener, true, false);
            }
        }
    }
}

/// Takes the first entry if its time has come.
fn pop_due(queue: &mut VecDeque<(Micros, u64)>, now: Micros) -> Option<u64> {
    queue.front().filter(|(at, _)| *at <= now)?;
    queue.pop_front().map(|(_, id)| id)
}
