//! Events: how often recorded, and how far the recordings have come.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::Device;

/// `CUevent` points to one of these.
pub(crate) struct Event {
    pub(crate) device: Arc<Device>,
    counts: Arc<Counts>,
}

/// Outlives the event's handle: a destroyed event that a stream still records is legal.
pub(crate) struct Counts {
    /// Recordings asked for, and recordings the stream has reached.
    state: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new(device: Arc<Device>) -> Event {
        Event { device, counts: Arc::new(Counts { state: Mutex::new((0, 0)), changed: Condvar::new() }) }
    }

    /// Asks for one more recording, and names it.
    pub(crate) fn record(&self) -> (Arc<Counts>, u64) {
        let mut state = self.counts.lock();
        state.0 += 1;
        (self.counts.clone(), state.0)
    }

    /// The latest recording asked for; `None` where there never was one.
    pub(crate) fn latest(&self) -> Option<(Arc<Counts>, u64)> {
        let asked = self.counts.lock().0;
        (asked > 0).then(|| (self.counts.clone(), asked))
    }

    /// Whether the latest recording has been reached. An event without one counts as reached, as on the driver.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.counts.lock();
        state.1 >= state.0
    }
}

impl Counts {
    pub(crate) fn reach(&self, recording: u64) {
        let mut state = self.lock();
        state.1 = state.1.max(recording);
        self.changed.notify_all();
    }

    /// Waits until `recording` is reached or `given_up` says that it never will be.
    pub(crate) fn wait(&self, recording: u64, given_up: &dyn Fn() -> bool) {
        let mut state = self.lock();
        while state.1 < recording && !given_up() {
            let nap = std::time::Duration::from_millis(1);
            state = self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
