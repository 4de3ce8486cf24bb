//! What only the engine with threads has: order, hooks, panics, wake-ups, its end.
#![allow(clippy::unwrap_used)]

mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use orbitkv_copy::{
    CopyDirection, CopyEngine, CopyFailure, CopyId, CopyState, HostCopy, HostCopyConfig, HostCopyError,
    WaitOutcome,
};
use world::{World, drain, submit};

use CopyDirection::{Restore, Save};

const LONG: Duration = Duration::from_secs(600);

fn nap() {
    std::thread::sleep(Duration::from_micros(100));
}

/// An engine whose hook reports each job it is called for, and holds it until told to go on.
struct Held {
    engine: HostCopy,
    reached: mpsc::Receiver<CopyId>,
    go_on: mpsc::Sender<()>,
}

fn held(threads: usize) -> Held {
    let (report, reached) = mpsc::channel();
    let (go_on, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hook = move |_, id| {
        report.send(id).unwrap();
        // A dropped sender lets everything go on.
        let _ = released.lock().unwrap().recv();
    };
    let config = HostCopyConfig { before_fragment: Some(Arc::new(hook)), ..HostCopyConfig::new(threads) };
    Held { engine: HostCopy::new(config).unwrap(), reached, go_on }
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    for threads in [0, 100_000] {
        assert!(matches!(HostCopy::new(HostCopyConfig::new(threads)), Err(HostCopyError::Threads { .. })));
    }
    let no_jobs = HostCopyConfig { max_jobs: 0, ..HostCopyConfig::new(1) };
    assert!(matches!(HostCopy::new(no_jobs), Err(HostCopyError::NoJobs)));
}

#[test]
fn an_abort_in_the_hook_stops_the_job_whole() {
    let world = World::new(&[(100_000, 0), (100_000, 0)], 2, 2);
    let before = world.pool_bytes();
    let mut held = held(2);
    let progress = submit(&mut held.engine, world.job(1, Save, &[(0, 0), (1, 1)]));
    assert_eq!(held.reached.recv().unwrap(), CopyId(1));
    assert_eq!(progress.state(), CopyState::Queued);
    assert!(progress.abort(Duration::ZERO), "nothing runs, so nothing is waited for");
    let mut early = Vec::new();
    held.engine.poll(&mut early);
    assert!(early.is_empty(), "reported only once its worker has let go of it");
    held.go_on.send(()).unwrap();
    assert_eq!(drain(&mut held.engine, &mut nap, 1)[0].state, CopyState::Aborted);
    assert!(world.pool_bytes() == before);
}

/// One byte of every 4 KiB: quick enough to be taken while a batch that was not waited for is still under way.
fn probe(world: &World) -> Vec<u8> {
    let mut bytes = vec![0; world.pool.bytes() / 4096];
    for (page, byte) in bytes.iter_mut().enumerate() {
        world.pool.read_at(page * 4096 + 4095, std::slice::from_mut(byte)).unwrap();
    }
    bytes
}

/// More threads than cores, so that some are preempted in the middle of a batch.
#[test]
fn a_true_abort_has_waited_for_the_batches_under_way() {
    let world = World::new(&[(8 << 20, 0); 2], 2, 2);
    let zeros = vec![0; world.pool.bytes()];
    let mut engine = HostCopy::new(HostCopyConfig::new(6)).unwrap();
    let mut begun = 0;
    for id in 0..60 {
        world.pool.write_at(0, &zeros).unwrap();
        let progress = submit(&mut engine, world.job(id, Save, &[(0, 1), (1, 0)]));
        while progress.state() == CopyState::Queued {
            std::thread::yield_now();
        }
        assert!(progress.abort(LONG));
        let at_abort = probe(&world);
        drain(&mut engine, &mut nap, 1);
        std::thread::sleep(Duration::from_millis(5));
        assert!(probe(&world) == at_abort, "bytes moved after the abort of job {id}");
        begun += u32::from(at_abort.iter().any(|byte| *byte != 0) && progress.state() == CopyState::Aborted);
    }
    assert!(begun > 0, "control: no abort came in the middle of a copy");
}

#[test]
fn a_held_job_goes_on_when_released() {
    let world = World::new(&[(100_000, 0)], 2, 2);
    let (_, after) = world.expected(Save, &[(0, 0)]);
    let mut held = held(1);
    let progress = submit(&mut held.engine, world.job(1, Save, &[(0, 0)]));
    held.reached.recv().unwrap();
    assert_eq!(progress.wait_step(0, Duration::from_millis(5)), WaitOutcome::TimedOut);
    held.go_on.send(()).unwrap();
    assert_eq!(progress.wait_step(0, LONG), WaitOutcome::Ready);
    assert_eq!(drain(&mut held.engine, &mut nap, 1)[0].state, CopyState::Done);
    assert!(world.pool_bytes() == after);
}

#[test]
fn restores_go_first_and_yet_a_save_gets_its_turn() {
    let world = World::new(&[(256, 0)], 16, 16);
    let mut held = held(1);
    // The only worker is held with the first job while the others queue up behind it.
    submit(&mut held.engine, world.job(0, Save, &[(0, 0)]));
    held.reached.recv().unwrap();
    submit(&mut held.engine, world.job(1, Save, &[(1, 1)]));
    for id in 2..14 {
        let at = usize::try_from(id).unwrap();
        submit(&mut held.engine, world.job(id, Restore, &[(at, at)]));
    }
    drop(held.go_on);
    let order: Vec<_> = held.reached.iter().take(13).map(|id| id.0).collect();
    let save_at = order.iter().position(|id| *id == 1).unwrap();
    assert_eq!(order[0], 2, "a restore overtakes the save before it: {order:?}");
    assert!(save_at > 0 && save_at < 12, "the save is neither first nor last: {order:?}");
    drain(&mut held.engine, &mut nap, 14);
}

#[test]
fn a_panic_fails_its_job_and_nothing_else() {
    let hook = |_, id| assert!(id != CopyId(1), "planned");
    let config = HostCopyConfig { before_fragment: Some(Arc::new(hook)), ..HostCopyConfig::new(1) };
    let mut engine = HostCopy::new(config).unwrap();
    let world = World::new(&[(64, 0)], 2, 2);
    let failing = submit(&mut engine, world.job(1, Save, &[(0, 0)]));
    let healthy = submit(&mut engine, world.job(2, Save, &[(1, 1)]));
    let done = drain(&mut engine, &mut nap, 2);
    assert_eq!(failing.state(), CopyState::Failed(CopyFailure::WorkerPanicked));
    assert_eq!(failing.wait_step(0, LONG), WaitOutcome::Failed(CopyFailure::WorkerPanicked));
    assert_eq!(healthy.state(), CopyState::Done);
    assert_eq!(done.iter().filter(|done| done.id == CopyId(1)).count(), 1);
}

#[test]
fn the_waker_is_called_after_each_end_and_may_panic() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (wake, woken) = mpsc::channel();
    let counted = calls.clone();
    let waker = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        wake.send(()).unwrap();
        assert!(counted.load(Ordering::SeqCst) != 1, "planned");
    };
    let config = HostCopyConfig { waker: Some(Arc::new(waker)), ..HostCopyConfig::new(2) };
    let mut engine = HostCopy::new(config).unwrap();
    let world = World::new(&[(64, 0)], 2, 2);
    for id in 0..3 {
        submit(&mut engine, world.job(id, Save, &[(0, 0)]));
        woken.recv().unwrap();
        let mut done = Vec::new();
        engine.poll(&mut done);
        assert_eq!(done.len(), 1, "the completion is there when the waker is called");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[test]
fn dropping_the_engine_ends_every_job() {
    let world = World::new(&[(100_000, 0); 2], 4, 4);
    let before = world.pool_bytes();
    let Held { mut engine, reached, go_on } = held(1);
    let jobs: Vec<_> = (0..4).map(|id| submit(&mut engine, world.job(id, Save, &[(0, 0)]))).collect();
    reached.recv().unwrap();
    // The worker is held with the first job, so the drop must wait for it, and is known to have begun by its effect
    // on the last.
    let dropper = std::thread::spawn(move || drop(engine));
    assert_eq!(jobs[3].wait_step(0, LONG), WaitOutcome::Aborted);
    go_on.send(()).unwrap();
    dropper.join().unwrap();
    assert!(jobs.iter().all(|progress| progress.state() == CopyState::Aborted));
    assert!(world.pool_bytes() == before);
}

#[test]
fn memory_stays_mapped_until_the_job_has_ended() {
    let world = World::new(&[(4096, 0)], 2, 2);
    let mut held = held(1);
    submit(&mut held.engine, world.job(1, Save, &[(0, 0)]));
    held.reached.recv().unwrap();
    assert_eq!(Arc::strong_count(&world.pool), 2, "ours and the job's (the mapping itself is gone)");
    drop(held.go_on);
    drain(&mut held.engine, &mut nap, 1);
    assert_eq!(Arc::strong_count(&world.pool), 1);
}
