//! Queries, leases, budgets and restores.

use crate::world::*;
use orbitkv_core::*;

#[test]
fn a_saved_prefix_is_leased_restored_and_drained() {
    let mut world = World::new(8, |_| {});
    world.save(&chain(0..3), None, 0);
    let (ticket, outcome) = world.query(&chain(0..5));
    assert_eq!(ready(&outcome).iter().map(|p| p.crc).collect::<Vec<_>>(), [42; 3]);
    assert_eq!(world.core.ledger().account_bytes(Account::Ready), 3 * SLOT_BYTES);
    assert_eq!(world.restore(ticket), []);
    assert_eq!(world.core.ledger().account_bytes(Account::Restoring), 3 * SLOT_BYTES);
    world.release(ticket);
    assert_eq!(world.core.operations_in(Phase::Draining), 1, "the worker is not done");
    world.step(Event::CopyDone { session: WORKER, ticket });
    assert_eq!((world.core.ledger().reserved_bytes(), world.core.operations().count()), (0, 0));
}

#[test]
fn a_part_of_a_lease_is_restored_and_counts_as_a_part() {
    let mut world = World::new(8, |_| {});
    world.save(&chain(0..4), None, 0);
    let (ticket, outcome) = world.query(&chain(0..4));
    let slots: Vec<_> = ready(&outcome).iter().map(|part| part.slot).collect();
    assert_eq!(world.restore_part(ticket, 1, 2), []);
    assert_eq!(world.core.counters().restored_pages, 2);
    assert_eq!(world.core.ledger().account_bytes(Account::Restoring), 4 * SLOT_BYTES, "all are leased");
    let readers = |world: &World| slots.iter().all(|slot| world.core.slot(*slot).unwrap().readers == 1);
    assert!(readers(&world), "custody is of the whole lease");
    assert_eq!(world.restore_part(ticket, 1, 2), [], "a repetition");
    assert_eq!(world.core.counters().restored_pages, 2);
    for (first, pages) in [(0, 4), (1, 1), (2, 2), (9, 9)] {
        let other = world.restore_part(ticket, first, pages);
        assert_eq!(refusal(&other), &Refusal::ParametersChanged, "{first}, {pages}");
    }
    assert_eq!(world.core.counters().restored_pages, 2);
    world.release(ticket);
    assert!(readers(&world), "until the worker is done");
    world.step(Event::CopyDone { session: WORKER, ticket });
    assert_eq!((world.core.ledger().reserved_bytes(), world.core.operations().count()), (0, 0));
}

#[test]
fn no_page_and_pages_outside_the_lease_are_not_handed_out() {
    let mut world = World::new(8, |_| {});
    world.save(&chain(0..3), None, 0);
    let (ticket, _) = world.query(&chain(0..5));
    for (first, pages) in [(0, 0), (3, 0), (0, 4), (2, 2), (3, 1), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
        let effects = world.restore_part(ticket, first, pages);
        assert_eq!(refusal(&effects), &Refusal::OutsideLease { first, pages, leased: 3 });
    }
    let text = refusal(&world.restore_part(ticket, 2, 2)).to_string();
    assert!(text.contains("2 pages from page 2") && text.contains("3 are leased"), "{text}");
    assert_eq!((world.core.operations_in(Phase::Ready), world.core.counters().restored_pages), (1, 0));
    assert_eq!(world.restore_part(ticket, 2, 1), [], "the last one alone");
    assert_eq!(world.core.counters().restored_pages, 1);
}

#[test]
fn a_repeated_query_is_answered_again_and_charged_once() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..1), None, 0);
    let (ticket, first) = world.query(&chain(0..1));
    let again = world.query_as(ticket, &chain(0..1), None);
    assert_eq!(first, again);
    assert_eq!(world.core.ledger().reserved_bytes(), SLOT_BYTES);
    let other = world.step(Event::Query {
        session: SCHEDULER,
        operation: ticket.operation,
        revision: ticket.revision,
        demand: Demand::prefix(GROUP, &chain(0..2)),
    });
    assert_eq!(refusal(&other), &Refusal::ParametersChanged);
}

#[test]
fn a_waiter_is_admitted_when_bytes_come_free_and_misses_at_its_deadline() {
    let mut world = World::new(4, |c| {
        c.query_budget_bytes = SLOT_BYTES;
        c.query_instance_budget_bytes = SLOT_BYTES;
    });
    world.save(&chain(0..1), None, 0);
    let (first, _) = world.query(&chain(0..1));
    let (operation, revision) = world.next();
    let late = Ticket { session: SCHEDULER, operation, revision };
    assert_eq!(world.query_as(late, &chain(0..1), Some(50)), [OperationOutcome::Waiting]);
    assert_eq!(outcomes(world.later(60)), [OperationOutcome::Miss(MissReason::Deadline)]);
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Waiting]);
    assert_eq!(ready(&outcomes(world.release(first))).len(), 1);
}

#[test]
fn a_demand_above_its_budget_gets_what_fits() {
    let mut world = World::new(4, |c| {
        c.query_budget_bytes = 2 * SLOT_BYTES;
        c.query_instance_budget_bytes = 2 * SLOT_BYTES;
    });
    world.save(&chain(0..4), None, 0);
    assert_eq!(ready(&world.query(&chain(0..4)).1).len(), 2);
    assert_eq!(world.core.counters().budget_bypasses, 1);
}

#[test]
fn an_unclaimed_lease_expires_and_a_claimed_one_does_not() {
    let mut world = World::new(4, |c| c.lease_ttl_ms = 100);
    world.save(&chain(0..1), None, 0);
    let (unclaimed, _) = world.query(&chain(0..1));
    let (claimed, _) = world.query(&chain(0..1));
    world.restore(claimed);
    assert_eq!(outcomes(world.later(200)), [OperationOutcome::Miss(MissReason::Expired)]);
    assert_eq!(world.core.operations_in(Phase::Restoring), 1);
    assert_eq!(world.core.operations_in(Phase::Ready), 1, "asked for, not taken");
    world.release(unclaimed);
    assert_eq!(refusal(&world.restore(unclaimed)), &Refusal::UnknownOperation);
}

#[test]
fn a_restore_that_crosses_the_expiry_of_its_lease_keeps_its_pages() {
    let mut world = World::new(1, |c| {
        c.lease_ttl_ms = 100;
        c.query_budget_bytes = c.pool_bytes;
        c.query_instance_budget_bytes = c.pool_bytes;
    });
    world.save(&chain(0..1), None, 0);
    let (ticket, _) = world.query(&chain(0..1));
    world.later(200);
    assert_eq!(world.restore(ticket), []);
    assert_eq!(world.reserve(&chain(5..6), None, 0), [Grant::Refused], "the page is being read");
    world.release(ticket);
    world.step(Event::CopyDone { session: WORKER, ticket });
    assert!(matches!(world.reserve(&chain(5..6), None, 0)[..], [Grant::Slots(_)]));
}

#[test]
fn a_worker_that_is_done_before_the_restore_is_read_is_not_waited_for() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..1), None, 0);
    let (ticket, _) = world.query(&chain(0..1));
    world.step(Event::CopyDone { session: WORKER, ticket });
    assert_eq!(world.core.operations_in(Phase::Ready), 1, "the owner still holds its lease");
    world.restore(ticket);
    world.release(ticket);
    assert_eq!((world.core.operations().count(), world.core.ledger().reserved_bytes()), (0, 0));
}

#[test]
fn a_large_demand_is_not_overtaken_by_small_ones_of_its_own_instance() {
    let mut world = World::new(8, |c| {
        c.query_budget_bytes = 4 * SLOT_BYTES;
        c.query_instance_budget_bytes = 2 * SLOT_BYTES;
    });
    world.save(&chain(0..2), None, 0);
    let (first, _) = world.query(&chain(0..1));
    let (large, outcome) = world.query(&chain(0..2));
    assert_eq!(outcome, [OperationOutcome::Waiting]);
    let (small, outcome) = world.query(&chain(0..1));
    assert_eq!(outcome, [OperationOutcome::Waiting], "it fits, but stands behind the large one");
    assert_eq!(ready(&outcomes(world.release(first))).len(), 2);
    assert_eq!(ready(&outcomes(world.release(large))).len(), 1);
    world.release(small);
}

/// What the wait of each ended waiter is, in microseconds: world time goes on by one with every event.
#[test]
fn no_stream_of_urgent_demands_overtakes_a_patient_one_for_ever() {
    const TURN: u64 = 8;
    let mut world = World::new(4, |c| {
        c.query_budget_bytes = SLOT_BYTES;
        c.query_instance_budget_bytes = SLOT_BYTES;
        c.arrivals_per_turn = TURN;
    });
    world.save(&chain(0..1), None, 0);
    let (mut holder, _) = world.query(&chain(0..1));
    let (patient, outcome) = world.query(&chain(0..1));
    assert_eq!(outcome, [OperationOutcome::Waiting]);
    for overtaken in 0..TURN {
        let (operation, revision) = world.next();
        let urgent = Ticket { session: SCHEDULER, operation, revision };
        assert_eq!(world.query_as(urgent, &chain(0..1), Some(1_000)), [OperationOutcome::Waiting]);
        world.release(holder);
        if world.core.operations().any(|op| op.ticket == patient && op.phase == Phase::Ready) {
            assert!(overtaken > 0, "control: the first one is more urgent and goes first");
            return;
        }
        holder = urgent;
    }
    panic!("overtaken {TURN} times");
}

#[test]
fn a_wait_for_budget_is_timed_from_its_beginning_to_whatever_ends_it() {
    let mut world = World::new(4, |c| {
        c.query_budget_bytes = SLOT_BYTES;
        c.query_instance_budget_bytes = SLOT_BYTES;
    });
    world.save(&chain(0..1), None, 0);
    let (first, _) = world.query(&chain(0..1));
    assert_eq!(world.core.budget_wait().count(), 0, "one that is admitted at once has not waited");

    let (admitted, outcome) = world.query(&chain(0..1));
    assert_eq!(outcome, [OperationOutcome::Waiting]);
    world.later(3);
    let repeated = world.query_as(admitted, &chain(0..1), None);
    assert_eq!(repeated, [OperationOutcome::Waiting]);
    assert_eq!(world.core.budget_wait().count(), 0, "it still waits");
    assert_eq!(ready(&outcomes(world.release(first))).len(), 1);
    let admission = 3_000 + 3;
    assert_eq!((world.core.budget_wait().count(), world.core.budget_wait().sum_micros()), (1, admission));

    let (operation, revision) = world.next();
    let late = Ticket { session: SCHEDULER, operation, revision };
    assert_eq!(world.query_as(late, &chain(0..1), Some(50)), [OperationOutcome::Waiting]);
    assert_eq!(outcomes(world.later(60)), [OperationOutcome::Miss(MissReason::Deadline)]);
    let deadline = 60_001;
    assert_eq!(world.core.budget_wait().sum_micros(), admission + deadline);

    let (cancelled, _) = world.query(&chain(0..1));
    world.later(1);
    let Ticket { session, operation, revision } = cancelled;
    world.step(Event::Cancel { session, operation, revision });
    let cancel = 1_000 + 2;
    assert_eq!(world.core.budget_wait().sum_micros(), admission + deadline + cancel);
    assert_eq!(world.core.budget_wait().count(), world.core.counters().budget_waits);
    let bucket = |micros: f64| {
        let buckets = world.core.budget_wait().buckets();
        buckets.into_iter().find(|(bound, _)| *bound * 1e6 >= micros).unwrap().1
    };
    assert_eq!([bucket(1_002.0), bucket(3_003.0), bucket(60_001.0)], [1, 1, 1]);
}

#[test]
fn a_wait_ends_with_the_session_that_waits() {
    let mut world = World::new(4, |c| {
        c.query_budget_bytes = SLOT_BYTES;
        c.query_instance_budget_bytes = SLOT_BYTES;
    });
    world.save(&chain(0..1), None, 0);
    world.query(&chain(0..1));
    world.query(&chain(0..1));
    world.step(Event::SessionClosed { session: SCHEDULER });
    assert_eq!((world.core.budget_wait().count(), world.core.budget_wait().sum_micros()), (1, 1));
}
