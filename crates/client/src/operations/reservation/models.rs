//! Every order in which an answer, a ticket and a change of mind can meet at one reservation.

use super::*;
use crate::sync::model;
use loom::thread;
use std::sync::Arc;

fn cell() -> Arc<ReservationCell> {
    Arc::new(ReservationCell::pending((7, 1, 1), 0, 0, vec![[1; 32], [2; 32]]))
}

fn grants() -> Grants {
    let statuses = vec![GrantStatus::Slots; 2];
    let part = PagePart::from(&orbitkv_wire::Part::default());
    Grants { shards: 1, before: ranks(&statuses), statuses, parts: vec![part; 2] }
}

#[test]
fn each_granted_slot_is_given_back_once() {
    model(|| {
        let cell = cell();
        let answering = Arc::clone(&cell);
        let reader = thread::spawn(move || answering.answer(grants()).len());
        let by_owner = cell.abandon().len();
        assert_eq!(by_owner + reader.join().unwrap(), 2);
    });
}

#[test]
fn a_slot_is_in_a_ticket_or_given_back() {
    model(|| {
        let cell = cell();
        let answering = Arc::clone(&cell);
        let reader = thread::spawn(move || {
            assert!(answering.answer(grants()).is_empty(), "its owner still has it");
        });
        // A poll that finds the answer finds all of it.
        if let Some(grants) = cell.grants() {
            assert_eq!(grants.statuses.len(), 2);
        }
        let claimed = cell.claim(1);
        reader.join().unwrap();
        assert_eq!(cell.abandon().len() + usize::from(claimed), 2);
        assert!(cell.abandon().is_empty());
    });
}
