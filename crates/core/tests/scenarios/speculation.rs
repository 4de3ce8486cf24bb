//! Preparations, warm-ups, and demands with rules of their own.

use crate::tiered::*;
use crate::world::*;
use orbitkv_core::*;

/// One query of that mode, and what it says at once.
fn begin(world: &mut World, pages: &[BlockHash], mode: Mode) -> (Ticket, Vec<Effect>) {
    let (operation, revision) = world.next();
    let ticket = Ticket { session: SCHEDULER, operation, revision };
    (ticket, send(world, ticket, pages, mode))
}

fn send(world: &mut World, ticket: Ticket, pages: &[BlockHash], mode: Mode) -> Vec<Effect> {
    let Ticket { session, operation, revision } = ticket;
    let demand = Demand { mode, ..Demand::prefix(GROUP, pages) };
    world.step(Event::Query { session, operation, revision, demand })
}

fn keep(world: &mut World, ticket: Ticket) {
    let Ticket { session, operation, revision } = ticket;
    assert_eq!(world.step(Event::Keep { session, operation, revision }), []);
}

fn land(world: &mut World, effects: &[Effect]) -> Vec<Effect> {
    let slots: Vec<_> = reads(effects).into_iter().map(|(slot, _)| slot).collect();
    slots.into_iter().flat_map(|slot| end(world, slot)).collect()
}

fn booked(world: &World, account: Account) -> u64 {
    world.core.ledger().account_bytes(account) / SLOT_BYTES
}

const EXPIRED: OperationOutcome = OperationOutcome::Miss(MissReason::Expired);
const SKIPPED: OperationOutcome = OperationOutcome::Miss(MissReason::Budget);

#[test]
fn what_was_prepared_is_claimed_and_counts_as_a_lookup_only_then() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let (ticket, effects) = begin(&mut world, &chain(0..3), Mode::Prepare);
    assert_eq!((reads(&effects).len(), booked(&world, Account::Preloading)), (2, 2));
    let prepared = outcomes(land(&mut world, &effects));
    assert_eq!(prepared, [OperationOutcome::Prepared { pages: 2 }]);
    assert_eq!((booked(&world, Account::Prepared), world.core.counters().queries), (2, 0));
    let outcome = outcomes(send(&mut world, ticket, &chain(0..3), Mode::Demand));
    assert_eq!(ready(&outcome).len(), 2);
    assert_eq!((booked(&world, Account::Prepared), booked(&world, Account::Ready)), (0, 2));
    let counters = *world.core.counters();
    assert_eq!((counters.queries, counters.tier_pages, counters.missed_pages), (1, 2, 1));
    let again = outcomes(send(&mut world, ticket, &chain(0..3), Mode::Demand));
    assert_eq!((again, world.core.counters().claims), (outcome, 1), "a lost reply");
    world.restore(ticket);
    let bytes = 2 * SLOT_BYTES;
    let counters = world.core.counters();
    assert_eq!((counters.ahead_read_bytes, counters.ahead_restored_bytes), (bytes, bytes));
}

#[test]
fn of_what_was_read_ahead_only_what_is_handed_out_was_of_use() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..4);
    let (ticket, effects) = begin(&mut world, &chain(0..4), Mode::Prepare);
    land(&mut world, &effects);
    send(&mut world, ticket, &chain(0..4), Mode::Demand);
    assert_eq!(world.restore_part(ticket, 1, 3), []);
    let used = |world: &World| {
        let counters = world.core.counters();
        (counters.restored_pages, counters.ahead_restored_bytes, counters.ahead_unused_bytes)
    };
    assert_eq!(used(&world), (3, 3 * SLOT_BYTES, 0));
    world.step(Event::CopyDone { session: WORKER, ticket });
    world.release(ticket);
    world.step(Event::DropUnleased);
    assert_eq!(used(&world), (3, 3 * SLOT_BYTES, SLOT_BYTES), "the first was read for nothing");
}

#[test]
fn nobody_waits_for_a_claim_longer_than_a_second_unless_it_is_kept() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..1);
    let (ticket, effects) = begin(&mut world, &chain(0..1), Mode::Prepare);
    land(&mut world, &effects);
    world.later(900);
    keep(&mut world, ticket);
    assert_eq!(outcomes(world.later(900)), []);
    assert_eq!(outcomes(world.later(200)), [EXPIRED]);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
    let late = send(&mut world, ticket, &chain(0..1), Mode::Demand);
    assert_eq!(refusal(&late), &Refusal::RetiredOperation);
    world.step(Event::DropUnleased);
    assert_eq!(world.core.counters().ahead_unused_bytes, SLOT_BYTES, "it was read for nothing");
}

#[test]
fn a_claim_during_the_reads_becomes_a_demand_with_a_deadline() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let (ticket, effects) = begin(&mut world, &chain(0..2), Mode::Prepare);
    let Ticket { session, operation, revision } = ticket;
    let pages = chain(0..2);
    let demand = Demand { deadline_ms: Some(50), ..Demand::prefix(GROUP, &pages) };
    let claimed = world.step(Event::Query { session, operation, revision, demand });
    assert_eq!(outcomes(claimed), [OperationOutcome::Waiting]);
    assert_eq!((booked(&world, Account::Preloading), booked(&world, Account::Preparing)), (0, 2));
    end(&mut world, reads(&effects)[0].0);
    assert_eq!(ready(&outcomes(world.later(60))).len(), 1);
}

#[test]
fn reads_ahead_are_not_urgent_until_they_are_claimed() {
    let urgency = |effects: &[Effect]| -> Vec<bool> {
        let urgent = |e: &Effect| if let Effect::Read { urgent, .. } = e { Some(*urgent) } else { None };
        effects.iter().filter_map(urgent).collect()
    };
    for mode in [Mode::Prepare, Mode::WarmUp] {
        let mut world = tiered(16, |_| {});
        store(&mut world, 0..4);
        let (ahead, effects) = begin(&mut world, &chain(0..2), mode);
        assert_eq!(urgency(&effects), [false; 2]);
        let (_, effects) = begin(&mut world, &chain(0..4), Mode::Demand);
        assert_eq!(urgency(&effects), [true; 2], "those that are being read already are shared");
        let hastened =
            |effects: &[Effect]| effects.iter().filter(|e| **e == Effect::Hasten { ticket: ahead }).count();
        assert_eq!(hastened(&effects), 1, "a demand waits for them now");
        if mode == Mode::Prepare {
            let claimed = send(&mut world, ahead, &chain(0..2), Mode::Demand);
            assert_eq!(hastened(&claimed), 1);
            let again = send(&mut world, ahead, &chain(0..2), Mode::Demand);
            assert!(!again.contains(&Effect::Hasten { ticket: ahead }), "{again:?}");
        }
    }
}

#[test]
fn a_second_copy_that_was_prepared_is_forgotten_with_the_first() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..1);
    // Reserved before the read begins, sealed before it ends: what is read becomes a second copy.
    let saved = slots_for(&mut world, &chain(0..1), None, 0);
    let (ticket, effects) = begin(&mut world, &chain(0..1), Mode::Prepare);
    for (slot, page) in saved {
        world.commit(slot, page);
    }
    assert_eq!(outcomes(land(&mut world, &effects)), [OperationOutcome::Prepared { pages: 1 }]);
    assert!(world.core.slots().any(|slot| slot.spare), "control: there are two copies");
    world.step(Event::Forget { session: SCHEDULER, group: GROUP, hashes: &chain(0..1) });
    let claimed = outcomes(send(&mut world, ticket, &chain(0..1), Mode::Demand));
    assert_eq!(claimed, [OperationOutcome::Miss(MissReason::Absent)]);
}

#[test]
fn other_pages_never_claim_what_was_prepared() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let (ticket, effects) = begin(&mut world, &chain(0..2), Mode::Prepare);
    land(&mut world, &effects);
    for other in [chain(0..1), chain(0..3), chain(1..3)] {
        let claim = send(&mut world, ticket, &other, Mode::Demand);
        assert_eq!(refusal(&claim), &Refusal::ParametersChanged);
    }
    // A newer version of the request prepares what it needs now, and the old range is given back.
    let newer = Ticket { revision: Revision(ticket.revision.0 + 1), ..ticket };
    let effects = send(&mut world, newer, &chain(0..1), Mode::Prepare);
    assert_eq!(outcomes(effects), [OperationOutcome::Prepared { pages: 1 }]);
    assert_eq!(booked(&world, Account::Prepared), 1);
}

#[test]
fn more_than_a_quarter_of_a_budget_is_skipped_not_cut() {
    let mut world = tiered(16, |config| config.query_instance_budget_bytes = 8 * SLOT_BYTES);
    store(&mut world, 0..4);
    assert_eq!(outcomes(begin(&mut world, &chain(0..3), Mode::Prepare).1), [SKIPPED]);
    assert_eq!(reads(&begin(&mut world, &chain(0..2), Mode::Prepare).1).len(), 2);
    assert_eq!(outcomes(begin(&mut world, &chain(2..3), Mode::Prepare).1), [SKIPPED], "the share is used");
    assert_eq!(world.core.counters().skipped_speculations, 2);
}

#[test]
fn a_session_prepares_for_four_requests_at_once() {
    let mut world = tiered(64, |_| {});
    store(&mut world, 0..1);
    for _ in 0..4 {
        begin(&mut world, &chain(0..1), Mode::Prepare);
    }
    let fifth = outcomes(begin(&mut world, &chain(0..1), Mode::Prepare).1);
    assert_eq!(fifth, [OperationOutcome::Miss(MissReason::Limit)]);
}

#[test]
fn nothing_is_read_ahead_of_a_demand_that_waits() {
    let mut world = tiered(16, |_| {});
    save_unwritten(&mut world, 100..116);
    let (most, _) = world.query(&chain(100..114));
    // Two pages would fit, but this demand wants three, and comes first.
    assert_eq!(world.query(&chain(100..103)).1, [OperationOutcome::Waiting]);
    assert_eq!(outcomes(begin(&mut world, &chain(100..101), Mode::Prepare).1), [SKIPPED]);
    world.release(most);
    let now = outcomes(begin(&mut world, &chain(100..101), Mode::Prepare).1);
    assert_eq!(now, [OperationOutcome::Prepared { pages: 1 }]);
}

#[test]
fn a_cancelled_preparation_counts_to_the_share_until_its_reads_have_ended() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..4);
    let (ticket, effects) = begin(&mut world, &chain(0..4), Mode::Prepare);
    let Ticket { session, operation, revision } = ticket;
    world.step(Event::Cancel { session, operation, revision });
    assert_eq!(booked(&world, Account::Preloading), 4);
    assert_eq!(outcomes(begin(&mut world, &chain(0..1), Mode::Prepare).1), [SKIPPED]);
    land(&mut world, &effects);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn forgotten_pages_are_not_handed_out_by_a_claim() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let (ticket, effects) = begin(&mut world, &chain(0..2), Mode::Prepare);
    land(&mut world, &effects);
    world.step(Event::Forget { session: SCHEDULER, group: GROUP, hashes: &chain(1..2) });
    let outcome = outcomes(send(&mut world, ticket, &chain(0..2), Mode::Demand));
    assert_eq!(ready(&outcome).len(), 1);
    assert_eq!(world.core.ledger().reserved_bytes(), SLOT_BYTES);
}

#[test]
fn a_warm_up_leaves_its_pages_to_whoever_comes() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let (ticket, effects) = begin(&mut world, &chain(0..2), Mode::WarmUp);
    assert_eq!(booked(&world, Account::Warming), 2);
    let claim = send(&mut world, ticket, &chain(0..2), Mode::Demand);
    assert!(matches!(refusal(&claim), Refusal::WrongPhase { .. }), "nobody owns it");
    let slots = reads(&effects);
    end(&mut world, slots[0].0);
    assert_eq!(booked(&world, Account::Warming), 1, "a page that is here is not owned");
    let outcome = outcomes(end(&mut world, slots[1].0));
    assert_eq!(outcome, [OperationOutcome::Warmed { pages: 2 }]);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
    // Reclaimable: another chain takes all the memory there is.
    save_unwritten(&mut world, 100..116);
    assert_eq!(world.core.counters().ahead_unused_bytes, 2 * SLOT_BYTES);
}

#[test]
fn a_warm_up_gives_way_to_demands() {
    let mut world = tiered(64, |config| config.prepared_batch_bytes = SLOT_BYTES);
    store(&mut world, 0..3);
    save_unwritten(&mut world, 100..101);
    let (_, effects) = begin(&mut world, &chain(0..3), Mode::WarmUp);
    assert_eq!(reads(&effects).len(), 1, "a batch is a page here");
    let (demand, _) = world.query(&chain(100..101));
    let effects = land(&mut world, &effects);
    assert_eq!(reads(&effects), []);
    assert_eq!(outcomes(effects), [OperationOutcome::Warmed { pages: 1 }]);
    assert_eq!(outcomes(begin(&mut world, &chain(1..3), Mode::WarmUp).1), [SKIPPED]);
    world.release(demand);
    assert_eq!(reads(&begin(&mut world, &chain(1..3), Mode::WarmUp).1).len(), 1);
}

#[test]
fn a_strict_demand_gets_all_or_nothing() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let ask = |world: &mut World, pages: &[BlockHash]| {
        let (operation, revision) = world.next();
        let demand = Demand { strict: true, ..Demand::prefix(GROUP, pages) };
        world.step(Event::Query { session: SCHEDULER, operation, revision, demand })
    };
    let absent = [OperationOutcome::Miss(MissReason::Absent)];
    assert_eq!(outcomes(ask(&mut world, &chain(0..3))), absent);
    let effects = ask(&mut world, &chain(0..2));
    let slots = reads(&effects);
    end(&mut world, slots[0].0);
    let failed = world.step(Event::ReadDone { slot: slots[1].0, good: false });
    assert_eq!(outcomes(failed), absent, "page 0 alone serves nobody");
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn a_demand_that_waits_for_its_full_prefix_is_not_cut_short() {
    let mut world = tiered(16, |config| {
        config.read_batch_bytes = SLOT_BYTES;
        config.read_batches = 1;
    });
    store(&mut world, 0..3);
    let (operation, revision) = world.next();
    let pages = chain(0..3);
    let demand = Demand { wait_full_prefix: true, deadline_ms: Some(10), ..Demand::prefix(GROUP, &pages) };
    let mut effects = world.step(Event::Query { session: SCHEDULER, operation, revision, demand });
    assert_eq!(outcomes(world.later(100)), []);
    for _ in 0..2 {
        effects = land(&mut world, &effects);
        assert_eq!(reads(&effects).len(), 1);
    }
    assert_eq!(ready(&outcomes(land(&mut world, &effects))).len(), 3);
}

#[test]
fn peaks_outlast_what_reached_them_and_tell_reads_ahead_from_demands() {
    let mut world = tiered(16, |_| {});
    store(&mut world, 0..2);
    let peaks = |world: &World| {
        let ledger = world.core.ledger();
        (ledger.peak_bytes() / SLOT_BYTES, ledger.speculative_peak_bytes() / SLOT_BYTES)
    };
    assert_eq!(peaks(&world), (0, 0));
    let (ticket, effects) = begin(&mut world, &chain(0..2), Mode::Prepare);
    land(&mut world, &effects);
    assert_eq!(peaks(&world), (2, 2));
    send(&mut world, ticket, &chain(0..2), Mode::Demand);
    assert_eq!((booked(&world, Account::Prepared), world.core.ledger().speculative_bytes()), (0, 0));
    let (second, _) = world.query(&chain(0..1));
    assert_eq!(peaks(&world), (3, 2), "a demand is none of those that are read ahead");
    world.release(second);
    world.release(ticket);
    assert_eq!((world.core.ledger().reserved_bytes(), peaks(&world)), (0, (3, 2)));
}
