//! Death, fences and attestation.

use crate::world::*;
use orbitkv_core::*;

#[test]
fn slots_of_a_dead_writer_stay_until_its_process_is_gone() {
    let mut world = World::new(2, |_| {});
    let grants = world.reserve(&chain(0..2), None, 0);
    assert!(matches!(grants[..], [Grant::Slots(_), Grant::Slots(_)]));
    world.step(Event::SessionClosed { session: WORKER });
    assert_eq!(world.core.quarantined_bytes(), 2 * SLOT_BYTES);
    world.step(Event::SessionGone { session: WORKER, evidence: Evidence::ProcessExit });
    assert_eq!((world.core.quarantined_bytes(), world.core.used_bytes()), (0, 0));
}

#[test]
fn an_attesting_client_frees_its_quarantine_and_its_old_epoch_is_fenced() {
    let mut world = World::new(2, |_| {});
    world.reserve(&chain(0..1), None, 0);
    let worker = spec(Role::Worker { rank: 0 });
    let client = ClientId(2);
    let again = Event::SessionOpened { session: SessionId(3), client, epoch: 2, spec: &worker };
    let effects = world.step(again);
    assert!(effects.contains(&Effect::CloseSession { session: WORKER }), "{effects:?}");
    assert_eq!(world.core.quarantined_bytes(), SLOT_BYTES);
    world.step(Event::SessionGone { session: WORKER, evidence: Evidence::Attested });
    assert_eq!(world.core.quarantined_bytes(), 0);
    let stale = Event::SessionOpened { session: SessionId(4), client, epoch: 2, spec: &worker };
    assert_eq!(refusal(&world.step(stale)), &Refusal::StaleEpoch { got: 2, last: 2 });
}

#[test]
fn a_lease_whose_restore_was_lost_with_the_connection_stays_until_its_workers_are_fenced() {
    let mut world = World::new(1, |c| {
        c.query_budget_bytes = c.pool_bytes;
        c.query_instance_budget_bytes = c.pool_bytes;
    });
    world.save(&chain(0..1), None, 0);
    world.query(&chain(0..1));
    world.step(Event::SessionClosed { session: SCHEDULER });
    assert_eq!(world.core.operations_in(Phase::Draining), 1);
    world.step(Event::Fenced { session: WORKER, scheduler: SCHEDULER });
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn a_fenced_worker_ends_what_a_dead_scheduler_left() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..1), None, 0);
    let (ticket, _) = world.query(&chain(0..1));
    world.restore(ticket);
    world.reserve(&chain(5..6), None, 0);
    let effects = world.step(Event::SessionClosed { session: SCHEDULER });
    assert_eq!(effects, [Effect::Fence { session: WORKER, scheduler: SCHEDULER }]);
    assert_eq!(world.core.filling_bytes(), SLOT_BYTES);
    world.step(Event::Fenced { session: WORKER, scheduler: SCHEDULER });
    assert_eq!((world.core.filling_bytes(), world.core.ledger().reserved_bytes()), (0, 0));
    assert_eq!(world.core.used_bytes(), SLOT_BYTES, "the sealed page stays");
}
