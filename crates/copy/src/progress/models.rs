//! Every order in which threads can meet at one job's progress.
//!
//! The bytes that a job moves are a cell that loom watches: two accesses that are not ordered by what the
//! threads exchange fail the model, whatever values they see.

use super::*;
use crate::sync::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const LONG: Duration = Duration::from_secs(600);

/// A job's progress and the bytes it moves.
struct Shared {
    progress: Progress,
    bytes: UnsafeCell<u64>,
}

impl Shared {
    fn new(steps: usize) -> Arc<Shared> {
        Arc::new(Shared { progress: Progress::new(steps), bytes: UnsafeCell::new(0) })
    }

    /// Touches the bytes as a copy does, or as whoever reuses their memory.
    fn write(&self) {
        // SAFETY: loom fails the model when another access is not ordered before or after this one.
        self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
    }

    fn read(&self) -> u64 {
        // SAFETY: as in `write`.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    /// One step, as an engine runs it.
    fn step(&self) -> bool {
        let Some(moving) = self.progress.enter() else { return false };
        self.write();
        drop(moving);
        if self.progress.is_stopped() {
            return false;
        }
        self.progress.step_done();
        true
    }
}

#[test]
fn memory_is_reused_after_an_abort_only_when_no_fragment_moves() {
    model(|| {
        let shared = Shared::new(1);
        let engine = Arc::clone(&shared);
        let copy = thread::spawn(move || {
            if engine.step() {
                engine.progress.complete();
            }
        });
        assert!(shared.progress.abort(LONG));
        shared.write();
        let state = shared.progress.state();
        copy.join().unwrap();
        assert_eq!(shared.progress.state(), state, "a final state stays");
        let moved = shared.read() - 1;
        assert!(
            state == CopyState::Aborted || (state == CopyState::Done && moved == 1),
            "{state:?}, {moved}"
        );
    });
}

#[test]
fn a_poll_that_finds_no_custody_may_reuse_the_memory() {
    model(|| {
        let shared = Shared::new(1);
        let engine = Arc::clone(&shared);
        let copy = thread::spawn(move || engine.step());
        shared.progress.request_abort();
        if !shared.progress.custody() {
            shared.write();
        }
        copy.join().unwrap();
        assert!(!shared.progress.custody(), "custody ends with the last fragment");
        assert_eq!(shared.progress.state(), CopyState::Aborted);
    });
}

#[test]
fn the_last_of_two_fragments_ends_custody() {
    model(|| {
        let shared = Shared::new(1);
        // Both run: what follows is about leaving.
        assert!(shared.progress.enter_unguarded() && shared.progress.enter_unguarded());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.progress.leave())
            })
            .collect();
        assert!(shared.progress.abort(LONG), "a wait that nobody wakes is a deadlock");
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(shared.progress.state(), CopyState::Aborted);
    });
}

#[test]
fn a_waiter_for_a_step_is_woken_by_it_and_sees_its_bytes() {
    model(|| {
        // Of two steps: no end of the job comes to wake it.
        let shared = Shared::new(2);
        drop(shared.progress.enter().unwrap());
        let engine = Arc::clone(&shared);
        let copy = thread::spawn(move || {
            engine.write();
            engine.progress.step_done();
        });
        assert_eq!(shared.progress.wait_step(0, LONG), WaitOutcome::Ready);
        assert_eq!(shared.read(), 1);
        copy.join().unwrap();
    });
}

#[test]
fn a_waiter_for_a_step_learns_at_once_that_it_will_not_come() {
    model(|| {
        let shared = Shared::new(1);
        let engine = Arc::clone(&shared);
        let moving = engine.progress.enter_unguarded();
        let copy = thread::spawn(move || engine.progress.fail(CopyFailure::DeviceLost));
        let failed = WaitOutcome::Failed(CopyFailure::DeviceLost);
        assert_eq!(shared.progress.wait_step(0, LONG), failed, "not when the fragment that runs has ended");
        assert!(moving && shared.progress.custody());
        copy.join().unwrap();
    });
}

#[test]
fn a_start_does_not_hide_a_stop() {
    model(|| {
        let shared = Shared::new(1);
        let engine = Arc::clone(&shared);
        let copy = thread::spawn(move || engine.progress.enter_unguarded());
        shared.progress.request_abort();
        let moving = copy.join().unwrap();
        let state = if moving { CopyState::Aborting } else { CopyState::Aborted };
        assert_eq!(shared.progress.state(), state);
    });
}

#[test]
fn a_poll_that_finds_a_step_done_sees_its_bytes() {
    model(|| {
        let shared = Shared::new(1);
        let engine = Arc::clone(&shared);
        let copy = thread::spawn(move || engine.step());
        if shared.progress.steps_done() == 1 {
            assert_eq!(shared.read(), 1);
        }
        copy.join().unwrap();
    });
}

#[test]
fn the_first_reason_to_stop_is_the_one_reported() {
    model(|| {
        let shared = Shared::new(1);
        let other = Arc::clone(&shared);
        let failing = thread::spawn(move || {
            other.progress.fail(CopyFailure::DeviceLost);
            other.progress.wait_step(0, LONG)
        });
        shared.progress.request_abort();
        let seen = shared.progress.wait_step(0, LONG);
        assert_eq!(failing.join().unwrap(), seen, "two callers heard of two ends");
        let state = shared.progress.state();
        let aborted = (WaitOutcome::Aborted, CopyState::Aborted);
        let lost = CopyFailure::DeviceLost;
        assert!([aborted, (WaitOutcome::Failed(lost), CopyState::Failed(lost))].contains(&(seen, state)));
    });
}
