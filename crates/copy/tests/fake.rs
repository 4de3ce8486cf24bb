//! The planned faults of the fake engine do what tests of other crates rely on.
#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orbitkv_copy::{
    CopyDirection::Save, CopyEngine, CopyError, CopyFailure, CopyId, CopyState, FAKE_FAILURE_CODE, FakeCopy,
    FakePlan, WaitOutcome,
};
use world::{World, submit};

fn three_layers() -> World {
    World::new(&[(100, 0); 3], 4, 4)
}

fn reports(engine: &mut FakeCopy) -> Vec<(u64, CopyState)> {
    let mut done = Vec::new();
    engine.poll(&mut done);
    done.iter().map(|done| (done.id.0, done.state)).collect()
}

#[test]
fn steps_end_when_their_time_has_come() {
    let world = three_layers();
    let mut engine = FakeCopy::new(4, None);
    engine.advance(1000);
    engine.plan_next(FakePlan { step_us: 10, ..FakePlan::default() });
    let slow = submit(&mut engine, world.job(1, Save, &[(0, 0)]));
    let quick = submit(&mut engine, world.job(2, Save, &[(1, 1)]));
    assert_eq!(quick.state(), CopyState::Queued, "nothing happens outside advance");
    engine.advance(1000);
    assert_eq!((slow.state(), quick.state()), (CopyState::Running, CopyState::Done));
    engine.advance(1009);
    assert_eq!(slow.steps_done(), 0);
    engine.advance(1010);
    assert_eq!(slow.steps_done(), 1);
    engine.advance(500);
    assert_eq!(slow.steps_done(), 1, "time does not run backwards");
    engine.advance(9999);
    assert_eq!(reports(&mut engine), [(2, CopyState::Done), (1, CopyState::Done)]);
    assert_eq!(engine.jobs_held(), 0);
}

#[test]
fn a_planned_failure_leaves_half_a_step_and_is_reported_once() {
    let world = three_layers();
    let before = world.pool_bytes();
    let (_, complete) = world.expected(Save, &[(0, 0)]);
    let mut engine = FakeCopy::new(4, None);
    engine.plan_next(FakePlan { fail_at_step: Some(1), ..FakePlan::default() });
    let progress = submit(&mut engine, world.job(1, Save, &[(0, 0)]));
    engine.advance(1);
    let failure = CopyFailure::Device { code: FAKE_FAILURE_CODE };
    assert_eq!(reports(&mut engine), [(1, CopyState::Failed(failure))]);
    assert_eq!(reports(&mut engine), []);
    assert_eq!(progress.steps_done(), 1);
    assert_eq!(progress.wait_step(1, Duration::MAX), WaitOutcome::Failed(failure));
    let after = world.pool_bytes();
    assert!(after[..150] == complete[..150] && after[150..] == before[150..]);
}

#[test]
fn a_dead_engine_keeps_custody_for_ever() {
    let world = three_layers();
    let mut engine = FakeCopy::new(4, None);
    engine.plan_next(FakePlan { die_at_step: Some(1), ..FakePlan::default() });
    let dying = submit(&mut engine, world.job(1, Save, &[(0, 0)]));
    engine.advance(1);
    assert!(engine.is_dead());
    let at_death = world.pool_bytes();
    let after = submit(&mut engine, world.job(2, Save, &[(1, 1)]));
    engine.advance(1_000_000);
    assert!(!dying.abort(Duration::ZERO), "nobody can say that its bytes are at rest");
    assert!(dying.custody());
    assert_eq!(dying.state(), CopyState::Aborting);
    assert_eq!(after.state(), CopyState::Queued);
    assert_eq!(reports(&mut engine), []);
    assert!(world.pool_bytes() == at_death);
    assert_eq!(engine.jobs_held(), 2);
}

#[test]
fn a_lost_device_fails_what_it_has_and_takes_no_more() {
    let world = three_layers();
    let wakes = Arc::new(AtomicUsize::new(0));
    let counted = wakes.clone();
    let waker = move || {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let mut engine = FakeCopy::new(4, Some(Arc::new(waker)));
    engine.plan_all(FakePlan { step_us: 10, ..FakePlan::default() });
    submit(&mut engine, world.job(1, Save, &[(0, 0)]));
    engine.advance(5);
    submit(&mut engine, world.job(2, Save, &[(1, 1)]));
    assert_eq!(wakes.load(Ordering::SeqCst), 0);
    engine.lose_device();
    assert_eq!(wakes.load(Ordering::SeqCst), 1);
    let lost = CopyState::Failed(CopyFailure::DeviceLost);
    assert_eq!(reports(&mut engine), [(1, lost), (2, lost)]);
    let refused = engine.submit(world.job(3, Save, &[(2, 2)])).unwrap_err();
    assert_eq!((refused.error, refused.job.id()), (CopyError::DeviceLost, CopyId(3)));
}
