//! Every order in which a restore, its abort and those who wait for it can meet.

use super::*;
use crate::sync::model;
use loom::thread;
use orbitkv_copy::CopyState;
use orbitkv_copy::model::ModelJob;

const LONG: Duration = Duration::from_secs(600);
const ORIGIN: Origin = Origin { session: 1, scheduler: 1, operation: 1, revision: 1, probe: false };

fn restore() -> Arc<LoadJob> {
    let part = PagePart::from(&orbitkv_wire::Part::default());
    Arc::new(LoadJob::new(ORIGIN, Vec::new(), vec![0], vec![part], StreamOrder::default()))
}

#[test]
fn an_abort_reaches_a_copy_that_is_being_submitted() {
    model(|| {
        let job = restore();
        let copied = Arc::clone(&job);
        let copy = Arc::new(ModelJob::new());
        let submitting = Arc::clone(&copy);
        let copier = thread::spawn(move || copied.submitted(Arc::clone(submitting.progress())));
        job.request_abort();
        copier.join().unwrap();
        assert_eq!(copy.progress().state(), CopyState::Aborted);
    });
}

#[test]
fn a_waiter_for_a_layer_is_woken_and_sees_its_bytes() {
    model(|| {
        let (job, bytes) = (restore(), Arc::new(loom::cell::Cell::new(0)));
        let (copied, target) = (Arc::clone(&job), Arc::clone(&bytes));
        let copier = thread::spawn(move || {
            let copy = ModelJob::new();
            copied.submitted(Arc::clone(copy.progress()));
            copy.run(|| target.set(1));
            copied.end();
        });
        assert!(job.wait_layer(0, LONG));
        assert_eq!(bytes.get(), 1);
        copier.join().unwrap();
    });
}

#[test]
fn a_page_that_cannot_be_copied_wakes_who_waits_for_a_layer() {
    model(|| {
        let job = restore();
        let copied = Arc::clone(&job);
        let copier = thread::spawn(move || copied.fail(0));
        assert!(!job.wait_layer(0, LONG), "the end may be far: other pages are copied first");
        copier.join().unwrap();
    });
}

#[test]
fn a_poll_that_finds_the_end_finds_the_pages_that_failed() {
    model(|| {
        let job = restore();
        let polled = Arc::clone(&job);
        let engine = thread::spawn(move || {
            if polled.has_ended() {
                assert!(polled.any_failed.load(Ordering::Relaxed) && polled.failures() == 1);
            }
        });
        job.fail(0);
        job.end();
        engine.join().unwrap();
    });
}

#[test]
fn memory_is_reused_when_an_aborted_restore_has_ended() {
    model(|| {
        let (job, bytes) = (restore(), Arc::new(loom::cell::Cell::new(0)));
        let (copied, target) = (Arc::clone(&job), Arc::clone(&bytes));
        let copier = thread::spawn(move || {
            let copy = ModelJob::new();
            copied.submitted(Arc::clone(copy.progress()));
            copy.run(|| target.set(1));
            copied.end();
        });
        job.request_abort();
        assert!(job.wait_ended(LONG));
        bytes.set(2);
        copier.join().unwrap();
        assert_eq!(bytes.get(), 2);
    });
}
