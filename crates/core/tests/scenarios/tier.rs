//! The slower tier: what is written, read, shared, waited for and paid for.

use crate::tiered::*;
use crate::world::*;
use orbitkv_core::*;

#[test]
fn what_left_memory_is_read_back_and_answered() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..2);
    let (ticket, slots) = ask(&mut world, &chain(0..3), None);
    assert_eq!((slots.len(), preparing(&world)), (2, 2 * SLOT_BYTES), "the third page was never saved");
    assert_eq!(end(&mut world, slots[1]), []);
    let outcome = outcomes(end(&mut world, slots[0]));
    let parts: Vec<_> = ready(&outcome).iter().map(|p| p.slot).collect();
    assert_eq!(parts, slots);
    assert_eq!((preparing(&world), world.core.counters().tier_pages), (0, 2));
    world.release(ticket);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
    // From memory now.
    assert_eq!(ready(&world.query(&chain(0..2)).1).len(), 2);
}

#[test]
fn at_its_deadline_a_demand_gets_the_prefix_that_is_here_and_pays_for_the_rest_until_it_lands() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..3);
    let (ticket, slots) = ask(&mut world, &chain(0..3), Some(10));
    end(&mut world, slots[2]);
    end(&mut world, slots[0]);
    let outcome = outcomes(world.later(11));
    assert_eq!(ready(&outcome).len(), 1, "page 2 is here, but page 1 is not");
    assert_eq!(preparing(&world), SLOT_BYTES, "page 1 is still being read");
    world.release(ticket);
    assert_eq!(world.core.operations_in(Phase::Draining), 1);
    end(&mut world, slots[1]);
    assert_eq!((world.core.operations().count(), world.core.ledger().reserved_bytes()), (0, 0));
    assert_eq!(ready(&world.query(&chain(0..3)).1).len(), 3, "nothing was read in vain");
}

#[test]
fn a_deadline_before_the_first_page_is_a_miss() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..1);
    let (_, slots) = ask(&mut world, &chain(0..1), Some(10));
    assert_eq!(outcomes(world.later(11)), [OperationOutcome::Miss(MissReason::Deadline)]);
    assert_eq!(preparing(&world), SLOT_BYTES);
    end(&mut world, slots[0]);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

/// Pages, stored pages left behind them, and milliseconds, as told before an answer.
fn told(effects: &[Effect]) -> Vec<(u32, u32, u64)> {
    let reads = |effect: &Effect| match effect {
        Effect::TierReads { pages, left_pages, micros, .. } => Some((*pages, *left_pages, *micros / 1000)),
        _ => None,
    };
    effects.iter().filter_map(reads).collect()
}

#[test]
fn an_answer_tells_what_was_read_for_it_and_for_how_long() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..3);
    let (first, slots) = ask(&mut world, &chain(0..1), None);
    world.later(3);
    assert_eq!(told(&end(&mut world, slots[0])), [(1, 0, 3)]);
    world.release(first);
    // One page is in memory by now, and the deadline comes before the last one.
    let (_, slots) = ask(&mut world, &chain(0..3), Some(10));
    end(&mut world, slots[0]);
    let effects = world.later(10);
    assert_eq!(told(&effects), [(1, 1, 10)]);
    assert!(matches!(effects[..], [Effect::TierReads { .. }, Effect::Operation { .. }]), "first of all");
    end(&mut world, slots[1]);
    // What comes from memory alone says nothing.
    let (operation, revision) = world.next();
    let pages = chain(0..3);
    let demand = Demand::prefix(GROUP, &pages);
    assert_eq!(told(&world.step(Event::Query { session: SCHEDULER, operation, revision, demand })), []);
}

#[test]
fn nothing_at_the_deadline_tells_that_too() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..2);
    ask(&mut world, &chain(0..2), Some(10));
    assert_eq!(told(&world.later(10)), [(0, 2, 10)]);
}

#[test]
fn a_query_of_memory_alone_reads_nothing_and_learns_what_is_stored() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..3);
    let memory_only = |world: &mut World| {
        let (operation, revision) = world.next();
        let pages = chain(0..4);
        let demand = Demand { memory_only: true, ..Demand::prefix(GROUP, &pages) };
        let effects = world.step(Event::Query { session: SCHEDULER, operation, revision, demand });
        assert_eq!(reads(&effects), []);
        (Ticket { session: SCHEDULER, operation, revision }, told(&effects), outcomes(effects))
    };
    let (_, left, outcome) = memory_only(&mut world);
    assert_eq!(
        (left, outcome),
        (vec![(0, 3, 0)], vec![OperationOutcome::Miss(MissReason::Absent)]),
        "the fourth was never saved"
    );
    // A page that is being read for another is not waited for.
    let (reader, slots) = ask(&mut world, &chain(0..2), None);
    assert_eq!(memory_only(&mut world).1, [(0, 3, 0)]);
    slots.into_iter().for_each(|slot| drop(end(&mut world, slot)));
    let (ticket, left, outcome) = memory_only(&mut world);
    assert_eq!((left, ready(&outcome).len()), (vec![(0, 1, 0)], 2));
    world.release(reader);
    world.release(ticket);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn batches_follow_each_other_up_to_their_limit() {
    let mut world = tiered(8, |config| {
        config.read_batch_bytes = 2 * SLOT_BYTES;
        config.read_batches = 2;
    });
    store(&mut world, 0..6);
    let (_, first) = ask(&mut world, &chain(0..6), None);
    assert_eq!(first.len(), 2);
    assert_eq!(end(&mut world, first[0]), [], "the batch has not ended");
    let second = reads(&end(&mut world, first[1]));
    assert_eq!(second.iter().map(|(_, extent)| *extent).collect::<Vec<_>>(), [2, 3]);
    end(&mut world, second[0].0);
    let outcome = outcomes(end(&mut world, second[1].0));
    assert_eq!(ready(&outcome).len(), 4);
    assert_eq!(preparing(&world), 0, "what was not submitted is not paid for");
}

#[test]
fn a_shared_read_goes_on_when_one_of_its_owners_stops() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..2);
    let (one, slots) = ask(&mut world, &chain(0..2), None);
    let (two, none) = ask(&mut world, &chain(0..2), None);
    assert_eq!((none.len(), world.core.counters().coalesced_reads), (0, 2));
    let Ticket { session, operation, revision } = one;
    assert_eq!(world.step(Event::Cancel { session, operation, revision }), []);
    assert_eq!(preparing(&world), 4 * SLOT_BYTES, "both pay until the reads have ended");
    end(&mut world, slots[0]);
    let outcome = outcomes(end(&mut world, slots[1]));
    assert_eq!(ready(&outcome).len(), 2);
    world.release(two);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn a_bad_read_ends_the_prefix_and_is_never_tried_again() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..3);
    let (ticket, slots) = ask(&mut world, &chain(0..3), None);
    let effects = world.step(Event::ReadDone { slot: slots[1], good: false });
    assert_eq!(erased(&effects), [1]);
    assert_eq!(outcomes(effects), [], "page 0 is still being read");
    let outcome = outcomes(end(&mut world, slots[0]));
    assert_eq!(ready(&outcome).len(), 1);
    end(&mut world, slots[2]);
    world.release(ticket);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
    assert_eq!(ready(&world.query(&chain(0..3)).1).len(), 1);
}

#[test]
fn an_overdue_read_is_waited_for_by_nobody_and_keeps_its_slot_and_its_bytes() {
    let mut world = tiered(8, |_| {});
    store(&mut world, 0..3);
    let (one, slots) = ask(&mut world, &chain(0..3), None);
    let (two, _) = ask(&mut world, &chain(0..3), None);
    end(&mut world, slots[0]);
    end(&mut world, slots[2]);
    let outcomes_of_both = outcomes(world.step(Event::ReadOverdue { slot: slots[1] }));
    assert_eq!(outcomes_of_both.len(), 2, "what is before it is answered: {outcomes_of_both:?}");
    assert!(outcomes_of_both.iter().all(|outcome| ready(std::slice::from_ref(outcome)).len() == 1));
    // Who comes now does not wait either, and may compute and save the page.
    assert_eq!(ready(&world.query(&chain(0..3)).1).len(), 1);
    let grants = world.reserve(&chain(1..2), None, 1);
    assert!(matches!(grants[..], [Grant::Slots(_)]), "{grants:?}");
    world.release(one);
    world.release(two);
    assert!(world.core.ledger().reserved_bytes() >= SLOT_BYTES, "paid for while it is read");
    end(&mut world, slots[1]);
    assert_eq!(ready(&world.query(&chain(0..3)).1).len(), 3, "it came in the end");
}

#[test]
fn reset_reaches_what_is_stored_what_is_written_and_what_is_read() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..2);
    let (_, slots) = ask(&mut world, &chain(0..1), None);
    let (slot, page) = slots_for(&mut world, &chain(50..51), None, 0)[0];
    let effects = world.commit(slot, page);
    assert!(matches!(effects[..], [Effect::Write { .. }]), "{effects:?}");
    let mut gone = erased(&world.step(Event::Reset { session: SCHEDULER }));
    gone.sort_unstable();
    assert_eq!(gone, [0, 1]);
    assert_eq!(erased(&world.step(Event::Written { slot, extent: Some(ExtentId(50)) })), [50]);
    assert_eq!(outcomes(end(&mut world, slots[0])), [OperationOutcome::Miss(MissReason::Absent)]);
    assert_eq!((world.core.used_bytes(), world.core.stored_pages()), (0, 0));
}

#[test]
fn a_page_that_is_written_stays_in_memory_until_the_write_has_ended() {
    let mut world = tiered(2, |_| {});
    let (slot, page) = slots_for(&mut world, &chain(0..1), None, 0)[0];
    world.commit(slot, page);
    world.step(Event::DropUnleased);
    let grants = world.reserve(&chain(10..12), None, 0);
    assert!(matches!(grants[..], [Grant::Slots(_), Grant::Refused]), "{grants:?}");
    world.step(Event::Written { slot, extent: None });
    assert!(matches!(world.reserve(&chain(20..21), None, 0)[..], [Grant::Slots(_)]), "it can be evicted now");
    assert_eq!(world.core.stored_pages(), 0, "the write failed");
}

#[test]
fn without_memory_for_a_read_the_prefix_ends() {
    let mut world = tiered(2, |_| {});
    store(&mut world, 0..2);
    // Both slots are being saved into.
    let grants = world.reserve(&chain(10..12), None, 0);
    assert_eq!(world.query(&chain(0..2)).1, [OperationOutcome::Miss(MissReason::Budget)]);
    world.step(Event::Abort { session: WORKER, slot: slot_of(&grants[0]) });
    let (_, slots) = ask(&mut world, &chain(0..2), None);
    assert_eq!(slots.len(), 1);
    assert_eq!(ready(&outcomes(end(&mut world, slots[0]))).len(), 1);
}

#[test]
fn a_page_that_is_saved_while_it_is_read_is_answered_once_and_kept_once() {
    let mut world = tiered(4, |_| {});
    // Asked for before its read began, committed while it runs.
    let (first, page) = slots_for(&mut world, &chain(0..1), None, 0)[0];
    let effects = world.commit(first, page);
    assert!(matches!(effects[..], [Effect::Write { .. }]));
    world.step(Event::Written { slot: first, extent: Some(ExtentId(0)) });
    world.step(Event::DropUnleased);
    let (second, _) = slots_for(&mut world, &chain(0..1), None, 0)[0];
    let (ticket, slots) = ask(&mut world, &chain(0..1), None);
    assert_eq!(world.commit(second, page), [], "stored already");
    let outcome = outcomes(end(&mut world, slots[0]));
    assert_eq!(ready(&outcome)[0].slot, slots[0]);
    world.release(ticket);
    assert_eq!(world.core.used_bytes(), SLOT_BYTES, "the one in the index stays");
    assert_eq!(ready(&world.query(&chain(0..1)).1)[0].slot, second);
}

#[test]
fn what_is_written_on_use_alone_wears_no_disk_before() {
    let writes = |effects: &[Effect]| effects.iter().filter(|e| matches!(e, Effect::Write { .. })).count();
    let mut world = tiered(8, |config| config.tier_policy = WritePolicy::Reuse);
    for (slot, page) in slots_for(&mut world, &chain(0..3), None, 0) {
        assert_eq!(world.commit(slot, page), [], "nobody has asked for it");
    }
    let demand = |world: &mut World, pages: u8| {
        let (operation, revision) = world.next();
        let ticket = Ticket { session: SCHEDULER, operation, revision };
        let hashes = chain(0..pages);
        let demand = Demand::prefix(GROUP, &hashes);
        let effects = world.step(Event::Query { session: SCHEDULER, operation, revision, demand });
        (ticket, effects)
    };
    let (first, effects) = demand(&mut world, 2);
    assert_eq!(writes(&effects), 2, "what it got, and nothing else");
    let (_, effects) = demand(&mut world, 2);
    assert_eq!(writes(&effects), 0, "they are being written");
    for effect in effects.iter().chain(&world.release(first)) {
        assert!(!matches!(effect, Effect::Erase { .. }));
    }
    let slots: Vec<SlotRef> = world.core.slots().filter(|s| s.writing).map(|s| s.slot).collect();
    for (number, slot) in (1..).zip(slots) {
        world.step(Event::Written { slot, extent: Some(ExtentId(number)) });
    }
    assert_eq!(world.core.stored_pages(), 2);
    let (_, effects) = demand(&mut world, 3);
    assert_eq!(writes(&effects), 1, "the third page is of use for the first time");
}

#[test]
fn a_page_whose_write_was_dropped_is_written_when_it_is_of_use() {
    let mut world = tiered(8, |config| config.tier_writes = 1);
    let mut written = Vec::new();
    for (slot, page) in slots_for(&mut world, &chain(0..2), None, 0) {
        written.extend(world.commit(slot, page));
    }
    let [Effect::Write { slot, .. }] = written[..] else { panic!("not one write: {written:?}") };
    world.step(Event::Written { slot, extent: Some(ExtentId(1)) });
    assert_eq!((world.core.stored_pages(), world.core.counters().dropped_writes), (1, 1));
    let (operation, revision) = world.next();
    let hashes = chain(0..2);
    let demand = Demand::prefix(GROUP, &hashes);
    let effects = world.step(Event::Query { session: SCHEDULER, operation, revision, demand });
    assert!(effects.iter().any(|e| matches!(e, Effect::Write { .. })), "{effects:?}");
}
