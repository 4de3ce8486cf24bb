//! A copy engine: one for each direction of a device.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Serves one stream as long as that has copies that may begin; others then get it in the order in which they came.
#[derive(Default)]
pub(crate) struct CopyEngine {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    next: u64,
    /// The first is served.
    waiting: VecDeque<u64>,
}

impl CopyEngine {
    /// Returns when it serves the caller, or `given_up` says that it never will.
    pub(crate) fn enter(&self, given_up: &dyn Fn() -> bool) -> Served<'_> {
        let mut turns = self.lock();
        let number = turns.next;
        turns.next += 1;
        turns.waiting.push_back(number);
        while turns.waiting.front() != Some(&number) && !given_up() {
            let nap = Duration::from_millis(1);
            turns = self.changed.wait_timeout(turns, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        Served { engine: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's use of an engine.
pub(crate) struct Served<'a> {
    engine: &'a CopyEngine,
    number: u64,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.engine.lock().waiting.retain(|number| *number != self.number);
        self.engine.changed.notify_all();
    }
}
