//! Threads that wait for something another thread stores in an atomic.

use crate::sync::{Condvar, Mutex, MutexGuard, wait_while};
use std::sync::PoisonError;
use std::time::Duration;

/// The lock orders only the going to sleep; what is waited for is read without it.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many sleep: waking nobody is a system call too.
    sleeping: Mutex<usize>,
    changed: Condvar,
}

impl Waiters {
    /// Runs `change` so that no waiter misses it.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let sleeping = self.lock();
        let changed = change();
        if *sleeping > 0 {
            self.changed.notify_all();
        }
        changed
    }

    /// Waits at most `timeout` while `waiting` says so.
    pub(crate) fn wait(&self, timeout: Duration, waiting: impl Fn() -> bool) {
        if waiting() && !timeout.is_zero() {
            let mut sleeping = self.lock();
            *sleeping += 1;
            let mut sleeping = wait_while(&self.changed, sleeping, timeout, |_| waiting());
            *sleeping -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one thread that does work for others.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// The next wait, or the present one, returns at once.
    pub(crate) fn raise(&self) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits until raised, at most `timeout`, and lowers it.
    pub(crate) fn wait(&self, timeout: Duration) {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raised = wait_while(&self.changed, raised, timeout, |raised| !*raised);
        *raised = false;
    }
}
