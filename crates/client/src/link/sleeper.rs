//! Whether a thread sleeps that others have to wake by a system call.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// A flag beside what is waited for. The sleeper raises it and then looks at what it waits for; the others
/// change that and then look at the flag. With a fence between the two on either side at least one of them sees
/// the other, so no change is slept through, and nobody is woken who does not sleep.
#[derive(Debug, Default)]
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    /// Sleeps by `sleep` if, as of now, `waiting` says so; `None` if it does not.
    pub(crate) fn sleep<T>(&self, waiting: impl FnOnce() -> bool, sleep: impl FnOnce() -> T) -> Option<T> {
        self.0.store(true, Ordering::Relaxed);
        // A change before this is seen now, after a later one `must_be_woken` is true.
        fence(Ordering::SeqCst);
        let slept = waiting().then(sleep);
        self.0.store(false, Ordering::Relaxed);
        slept
    }

    /// Asked after a change: whether the thread may be asleep and not know of it.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod models;
