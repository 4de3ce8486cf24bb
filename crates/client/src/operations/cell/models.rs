//! Every order in which an answer, an end, a claim and a poll can meet at one query.
//!
//! The thread that is started is the one that polls: loom tries every value that a load may return, but not
//! every earlier moment for a load of a thread that then waits for the other.

use super::*;
use crate::sync::{Mutex, model};
use loom::thread;
use std::sync::Arc;

const LONG: Duration = Duration::from_secs(600);
const PAGES: u32 = 3;

fn pending() -> Arc<QueryCell> {
    Arc::new(QueryCell::pending((7, 1, 1), 0, Instant::now()))
}

fn lease() -> Lease {
    let section = Section { group: 0, first_page: 0, pages: PAGES, shards: 1 };
    Lease { sections: vec![section], parts: Vec::new(), recovery: false }
}

/// What a poll finds belongs together: pages with ready, a reason with a miss.
fn look(cell: &QueryCell) {
    match cell.state() {
        QueryState::Pending => {}
        // It may have become a miss since.
        QueryState::Ready => match cell.lease() {
            Some(lease) => assert_eq!(lease.pages(), PAGES as usize),
            None => assert_eq!(cell.state(), QueryState::Miss),
        },
        QueryState::Miss => assert!(cell.reason().is_some(), "a miss says why"),
    }
}

#[test]
fn a_poll_that_finds_an_answer_finds_its_pages() {
    model(|| {
        let cell = pending();
        let polled = Arc::clone(&cell);
        let engine = thread::spawn(move || {
            if polled.state() == QueryState::Ready {
                assert_eq!(polled.lease().map(Lease::pages), Some(PAGES as usize));
                assert_eq!(polled.operation(), 2);
            }
        });
        // A claim that was asked again has another id.
        cell.operation.store(2, Ordering::Relaxed);
        assert!(cell.ready(lease()));
        engine.join().unwrap();
    });
}

#[test]
fn a_poll_that_finds_a_miss_finds_its_reason() {
    model(|| {
        let cell = pending();
        let polled = Arc::clone(&cell);
        let engine = thread::spawn(move || look(&polled));
        assert!(cell.miss(MissReason::Absent));
        engine.join().unwrap();
        assert_eq!((cell.state(), cell.reason()), (QueryState::Miss, Some(MissReason::Absent)));
    });
}

#[test]
fn a_waiter_is_woken_by_an_answer_and_by_an_end() {
    for answered in [true, false] {
        model(move || {
            let cell = pending();
            let ending = Arc::clone(&cell);
            let reader = thread::spawn(move || {
                let ended = if answered { ending.ready(lease()) } else { ending.miss(MissReason::Deadline) };
                assert!(ended);
            });
            assert_ne!(cell.wait(LONG), QueryState::Pending);
            look(&cell);
            reader.join().unwrap();
        });
    }
}

#[test]
fn of_an_answer_and_a_cancel_one_comes_first_and_the_other_knows() {
    model(|| {
        let cell = pending();
        let answering = Arc::clone(&cell);
        let reader = thread::spawn(move || answering.ready(lease()));
        let cancelled = cell.miss(MissReason::Released);
        look(&cell);
        let answered = reader.join().unwrap();
        // A lease that has come may still be cancelled, an ended query is never answered.
        assert!(cancelled, "nobody has it yet");
        assert_eq!(cell.state(), QueryState::Miss, "answered: {answered}");
        assert_eq!(cell.reason(), Some(MissReason::Released));
        assert!(cell.lease().is_none());
    });
}

#[test]
fn of_a_claim_and_an_expiry_exactly_one_wins() {
    model(|| {
        let cell = pending();
        assert!(cell.ready(lease()));
        let expiring = Arc::clone(&cell);
        let reader = thread::spawn(move || expiring.miss(MissReason::Expired));
        let handed = cell.hand_out();
        look(&cell);
        let expired = reader.join().unwrap();
        assert_ne!(handed, expired, "both or neither have it");
        assert_eq!(cell.lease().is_some(), handed, "the workers copy from a lease that stands");
    });
}

#[test]
fn of_two_claims_one_has_the_lease() {
    model(|| {
        let cell = pending();
        assert!(cell.ready(lease()));
        let other = Arc::clone(&cell);
        let claim = thread::spawn(move || other.hand_out());
        assert_ne!(cell.hand_out(), claim.join().unwrap());
    });
}

#[test]
fn a_hand_out_that_the_manager_was_not_told_of_is_a_miss() {
    model(|| {
        let cell = pending();
        assert!(cell.ready(lease()));
        // As in `Operations`: whoever ends a query has the table's lock.
        let table = Arc::new(Mutex::new(()));
        let (expiring, lock) = (Arc::clone(&cell), Arc::clone(&table));
        let reader = thread::spawn(move || {
            let _table = lock.lock().unwrap();
            expiring.miss(MissReason::Expired)
        });
        let handed = {
            let _table = table.lock().unwrap();
            let handed = cell.hand_out();
            if handed {
                cell.take_back(MissReason::Disconnected);
            }
            handed
        };
        look(&cell);
        assert_ne!(handed, reader.join().unwrap());
        let reason = if handed { MissReason::Disconnected } else { MissReason::Expired };
        assert_eq!((cell.state(), cell.reason()), (QueryState::Miss, Some(reason)));
    });
}

#[test]
fn a_waiter_for_a_reset_is_woken() {
    model(|| {
        let cell = Arc::new(ResetCell::default());
        let ending = Arc::clone(&cell);
        let reader = thread::spawn(move || ending.finish());
        assert!(cell.wait(LONG));
        reader.join().unwrap();
    });
}
