//! Every order in which the table's changes and the polls of an engine can meet at one preparation.

use super::*;
use crate::sync::model;
use loom::thread;

const PAGES: u32 = 3;

fn pending() -> Arc<PreparationCell> {
    Arc::new(PreparationCell::pending(
        (7, 1, 1),
        Kept::Prefix { group: 0, hashes: vec![[1; 32]] },
        Instant::now(),
    ))
}

#[test]
fn a_poll_that_finds_it_prepared_finds_its_pages() {
    model(|| {
        let cell = pending();
        let polled = Arc::clone(&cell);
        let engine = thread::spawn(move || {
            if polled.poll() == PreparationState::Prepared {
                assert_eq!(polled.pages(), PAGES);
            }
        });
        cell.prepared(PAGES);
        engine.join().unwrap();
    });
}

#[test]
fn a_poll_that_finds_its_end_finds_the_reason() {
    model(|| {
        let cell = pending();
        let polled = Arc::clone(&cell);
        let engine = thread::spawn(move || match polled.poll() {
            PreparationState::Pending => {}
            // It may have ended since, and then has none.
            PreparationState::Prepared => assert!([0, PAGES].contains(&polled.pages())),
            PreparationState::Miss => {
                assert_eq!((polled.pages(), polled.reason()), (0, Some(MissReason::Expired)));
            }
        });
        cell.prepared(PAGES);
        cell.end(MissReason::Expired);
        engine.join().unwrap();
    });
}

#[test]
fn of_two_claims_one_is_the_first() {
    model(|| {
        let cell = pending();
        let other = Arc::clone(&cell);
        let claim = thread::spawn(move || other.spend());
        assert_ne!(cell.spend(), claim.join().unwrap());
    });
}
