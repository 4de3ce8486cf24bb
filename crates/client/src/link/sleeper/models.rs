//! Every order in which a change and a going to sleep can meet.

use super::*;
use crate::operations::{MissReason, QueryCell, QueryState};
use crate::sync::{Condvar, Mutex, model};
use loom::thread;
use std::sync::Arc;
use std::time::Instant;

/// An eventfd: raised until it is cleared.
#[derive(Default)]
struct Nudge {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Nudge {
    fn raise(&self) {
        *self.raised.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn poll(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !*raised {
            raised = self.changed.wait(raised).unwrap();
        }
    }

    fn clear(&self) {
        *self.raised.lock().unwrap() = false;
    }
}

/// A reader that nothing but a nudge can wake, and whoever ends the query it waits for: it returns, or the
/// model is a deadlock.
#[test]
fn a_reader_does_not_sleep_through_an_end() {
    model(|| {
        let cell = Arc::new(QueryCell::pending((7, 1, 1), 0, Instant::now()));
        let shared = Arc::new((Sleeper::default(), Nudge::default()));
        let (ending, waking) = (Arc::clone(&cell), Arc::clone(&shared));
        let other = thread::spawn(move || {
            let (sleeper, nudge) = &*waking;
            assert!(ending.miss(MissReason::Released));
            if sleeper.must_be_woken() {
                nudge.raise();
            }
        });
        let (sleeper, nudge) = &*shared;
        let pending = || cell.state() == QueryState::Pending;
        while sleeper.sleep(pending, || nudge.poll()).is_some() {
            nudge.clear();
        }
        assert_eq!(cell.state(), QueryState::Miss);
        other.join().unwrap();
    });
}

/// Two changes, and a clearing that may come between them.
#[test]
fn a_nudge_that_is_cleared_was_seen() {
    model(|| {
        let changes = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let shared = Arc::new((Sleeper::default(), Nudge::default()));
        let (changing, waking) = (Arc::clone(&changes), Arc::clone(&shared));
        let other = thread::spawn(move || {
            let (sleeper, nudge) = &*waking;
            for _ in 0..2 {
                changing.fetch_add(1, Ordering::Relaxed);
                if sleeper.must_be_woken() {
                    nudge.raise();
                }
            }
        });
        let (sleeper, nudge) = &*shared;
        let waiting = || changes.load(Ordering::Relaxed) < 2;
        while sleeper.sleep(waiting, || nudge.poll()).is_some() {
            nudge.clear();
        }
        other.join().unwrap();
    });
}
