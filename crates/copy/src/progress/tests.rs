use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(600);

#[test]
fn every_state_survives_its_atomic_word() {
    let cell = StateCell::new();
    assert_eq!(cell.get(), CopyState::Queued);
    for state in [
        CopyState::Queued,
        CopyState::Running,
        CopyState::Aborting,
        CopyState::Done,
        CopyState::Aborted,
        CopyState::Failed(CopyFailure::WorkerPanicked),
        CopyState::Failed(CopyFailure::DeviceLost),
        CopyState::Failed(CopyFailure::Device { code: -7 }),
        CopyState::Failed(CopyFailure::Device { code: i32::MAX }),
    ] {
        cell.set(state);
        assert_eq!(cell.get(), state);
    }
}

#[test]
fn the_time_of_the_copies_is_that_of_equal_steps() {
    let nap = Duration::from_millis(4);
    let progress = Progress::new(2);
    thread::sleep(nap);
    progress.step_done();
    thread::sleep(nap);
    progress.step_done();
    assert_eq!(progress.moving_time(), None, "not before the end");
    progress.complete();
    assert!(progress.moving_time().is_some_and(|time| time >= 2 * nap), "two steps, one of them seen");
    let (single, stopped) = (Progress::new(1), Progress::new(2));
    single.step_done();
    single.complete();
    stopped.step_done();
    stopped.step_done();
    stopped.request_abort();
    assert_eq!((single.moving_time(), stopped.moving_time()), (None, None));
}

#[test]
fn a_job_is_in_custody_from_its_making_to_its_end() {
    let progress = Progress::new(2);
    assert!(progress.custody());
    for done in 1..=2 {
        drop(progress.enter().unwrap());
        assert_eq!(progress.state(), CopyState::Running);
        progress.step_done();
        assert_eq!(progress.steps_done(), done);
        assert!(progress.custody());
    }
    progress.complete();
    assert_eq!(progress.state(), CopyState::Done);
    assert!(!progress.custody());
    assert!(progress.enter().is_none());
    assert!(progress.abort(NOW), "nothing is left to stop");
    assert_eq!(progress.state(), CopyState::Done);
}

#[test]
fn abort_reports_a_running_fragment_and_keeps_custody_until_it_ends() {
    let progress = Progress::new(1);
    let moving = progress.enter().unwrap();
    assert!(!progress.abort(NOW));
    assert_eq!(progress.state(), CopyState::Aborting);
    assert!(progress.custody());
    assert!(progress.enter().is_none(), "nothing new starts");
    assert!(progress.custody(), "a refused entry does not end the running one");
    assert_eq!(progress.wait_step(0, NOW), WaitOutcome::Aborted);
    drop(moving);
    assert_eq!(progress.state(), CopyState::Aborted);
    assert!(progress.abort(NOW));
}

#[test]
fn the_first_reason_to_stop_wins() {
    let progress = Progress::new(1);
    let moving = progress.enter().unwrap();
    progress.fail(CopyFailure::DeviceLost);
    assert!(!progress.abort(NOW));
    assert_eq!(progress.wait_step(0, NOW), WaitOutcome::Failed(CopyFailure::DeviceLost));
    drop(moving);
    assert_eq!(progress.state(), CopyState::Failed(CopyFailure::DeviceLost));
}

#[test]
fn waiting_tells_apart_what_happened() {
    let progress = Progress::new(2);
    assert_eq!(progress.wait_step(0, NOW), WaitOutcome::TimedOut);
    progress.step_done();
    assert_eq!(progress.wait_step(0, NOW), WaitOutcome::Ready);
    assert_eq!(progress.wait_step(1, Duration::from_millis(1)), WaitOutcome::TimedOut);
    progress.fail(CopyFailure::WorkerPanicked);
    assert_eq!(progress.wait_step(0, NOW), WaitOutcome::Ready, "that step is complete whatever came later");
    assert_eq!(progress.wait_step(9, LONG), WaitOutcome::Failed(CopyFailure::WorkerPanicked));
}

/// A lost wake-up would show as a wait of ten minutes: each step is made only once the one before has been seen.
#[test]
fn waiters_are_woken_by_every_step() {
    const STEPS: usize = 20_000;
    let progress = Arc::new(Progress::new(STEPS));
    let (seen, confirmed) = mpsc::channel();
    let waiter = {
        let progress = progress.clone();
        thread::spawn(move || {
            for step in 0..STEPS {
                seen.send(progress.wait_step(step, LONG)).unwrap();
            }
        })
    };
    for _ in 0..STEPS {
        drop(progress.enter().unwrap());
        progress.step_done();
        assert_eq!(confirmed.recv().unwrap(), WaitOutcome::Ready);
    }
    progress.complete();
    waiter.join().unwrap();
}

/// The worker writes only inside the gate; after a true abort the value must stand still.
#[test]
fn nothing_moves_after_abort_returned_true() {
    let mut stopped_while_running = 0;
    for round in 0..10_000_u32 {
        let progress = Arc::new(Progress::new(1));
        let moving_now = Arc::new(AtomicBool::new(false));
        let worker = {
            let (progress, moving_now) = (progress.clone(), moving_now.clone());
            thread::spawn(move || {
                let mut fragments = 0;
                while let Some(moving) = progress.enter() {
                    moving_now.store(true, Ordering::SeqCst);
                    std::hint::spin_loop();
                    moving_now.store(false, Ordering::SeqCst);
                    drop(moving);
                    fragments += 1;
                }
                fragments
            })
        };
        for _ in 0..round % 97 * 50 {
            std::hint::spin_loop();
        }
        assert!(progress.abort(LONG));
        assert!(!moving_now.load(Ordering::SeqCst));
        assert!(!progress.custody());
        stopped_while_running += u32::from(worker.join().unwrap() > 0);
    }
    assert!(stopped_while_running > 0, "some rounds must stop a worker in its stride");
}
