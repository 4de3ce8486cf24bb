//! The check of pages in memory.

use crate::tiered::*;
use crate::world::*;
use orbitkv_core::*;

const PAYLOAD_BYTES: u64 = 4096;

/// Begins a round of so many pages; the slots that are to be read.
fn round(world: &mut World, pages: u64) -> Vec<SlotRef> {
    let slot = |effect: &Effect| match *effect {
        Effect::Scrub { slot, payload_bytes, crc } => {
            assert_eq!((u64::from(payload_bytes), crc), (PAYLOAD_BYTES, 42));
            slot
        }
        ref other => panic!("{other:?} in a round"),
    };
    world.step(Event::Scrub { bytes: pages * PAYLOAD_BYTES }).iter().map(slot).collect()
}

fn end_round(world: &mut World, slots: &[SlotRef], good: bool) {
    for &slot in slots {
        assert_eq!(world.step(Event::Scrubbed { slot, good }), []);
    }
}

#[test]
fn rounds_go_over_all_pages_and_begin_again() {
    let mut world = World::new(8, |_| {});
    assert_eq!(round(&mut world, 3), [], "there is nothing");
    world.save(&chain(0..5), None, 0);
    let mut seen = Vec::new();
    for count in [3, 2, 3, 2] {
        let slots = round(&mut world, 3);
        assert_eq!(slots.len(), count);
        assert_eq!(round(&mut world, 3), [], "one round at a time");
        end_round(&mut world, &slots, true);
        seen.push(slots);
    }
    assert_eq!(seen[..2], seen[2..], "the same pages again");
    assert!(seen[0].iter().all(|slot| !seen[1].contains(slot)));
    let counted = ScrubCounters { pages: 10, bytes: 10 * PAYLOAD_BYTES, bad_pages: 0, passes: 2 };
    assert_eq!(world.core.counters().scrub, counted);
}

#[test]
fn a_page_larger_than_a_round_is_read_alone() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..2), None, 0);
    assert_eq!(round(&mut world, 0).len(), 1);
}

#[test]
fn pages_that_nobody_finds_are_not_read() {
    let mut world = tiered(4, |_| {});
    store(&mut world, 0..1);
    let (_, slots) = ask(&mut world, &chain(0..1), None);
    let saving = world.reserve(&chain(5..6), None, 0);
    assert_eq!(round(&mut world, 4), [], "one is being filled, one is being saved");
    end(&mut world, slots[0]);
    assert_eq!(round(&mut world, 4), slots);
    assert!(!slots.contains(&slot_of(&saving[0])));
}

#[test]
fn what_is_read_is_not_evicted_before_the_answer() {
    let mut world = World::new(2, |_| {});
    world.save(&chain(0..1), None, 0);
    world.save(&chain(1..2), None, 0);
    let slots = round(&mut world, 1);
    // The other page makes room, though it was used last; then nothing does.
    let grants = world.reserve(&chain(100..102), None, 0);
    assert_ne!(slot_of(&grants[0]).index, slots[0].index);
    assert_eq!(grants[1], Grant::Refused);
    assert_eq!(world.core.sealed_pages(), 1, "it is still there");
    end_round(&mut world, &slots, true);
    let grants = world.reserve(&chain(102..103), None, 0);
    assert_eq!(slot_of(&grants[0]).index, slots[0].index);
}

#[test]
fn what_is_read_does_not_count_as_used() {
    let mut world = World::new(3, |_| {});
    (0..3).for_each(|page| world.save(&chain(page..page + 1), None, 0));
    let slots = round(&mut world, 1);
    end_round(&mut world, &slots, true);
    world.save(&chain(100..101), None, 0);
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)], "it is the oldest");
}

#[test]
fn a_page_that_has_changed_is_a_miss_and_frees_its_slot() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..3), None, 0);
    let slots = round(&mut world, 3);
    end_round(&mut world, &slots[1..2], false);
    end_round(&mut world, &slots[..1], true);
    end_round(&mut world, &slots[2..], true);
    // Slots are given out in order, so it is the second page of the chain.
    assert_eq!((ready(&world.query(&chain(0..3)).1).len(), world.core.sealed_pages()), (1, 2));
    assert_eq!(world.core.counters().scrub.bad_pages, 1);
    assert_eq!(world.core.slot(slots[1]), None);
}

#[test]
fn a_leased_page_that_has_changed_keeps_its_slot_until_the_lease_ends() {
    let mut world = World::new(2, |c| c.query_budget_bytes = c.pool_bytes);
    world.save(&chain(0..1), None, 0);
    let (ticket, _) = world.query(&chain(0..1));
    let slots = round(&mut world, 1);
    end_round(&mut world, &slots, false);
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)]);
    assert!(world.core.slot(slots[0]).is_some());
    world.release(ticket);
    assert_eq!(world.core.slot(slots[0]), None);
}

#[test]
fn a_page_that_is_forgotten_meanwhile_frees_its_slot_with_the_answer() {
    for good in [true, false] {
        let mut world = World::new(2, |_| {});
        world.save(&chain(0..1), None, 0);
        let slots = round(&mut world, 1);
        world.step(Event::DropUnleased);
        assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)]);
        assert_eq!(world.core.used_bytes(), SLOT_BYTES);
        end_round(&mut world, &slots, good);
        assert_eq!((world.core.used_bytes(), world.core.counters().scrub.bad_pages), (0, 0));
        end_round(&mut world, &slots, good);
    }
}

#[test]
fn the_copy_in_the_tier_is_read_in_its_place() {
    let mut world = tiered(4, |_| {});
    let (slot, page) = slots_for(&mut world, &chain(0..1), None, 0)[0];
    world.commit(slot, page);
    world.step(Event::Written { slot, extent: Some(ExtentId(7)) });
    let slots = round(&mut world, 1);
    end_round(&mut world, &slots, false);
    let (_, slots) = ask(&mut world, &chain(0..1), None);
    let answer = outcomes(end(&mut world, slots[0]));
    assert_eq!(ready(&answer).len(), 1);
}

#[test]
fn what_is_being_written_of_a_page_that_has_changed_is_erased() {
    let mut world = tiered(4, |_| {});
    let (slot, page) = slots_for(&mut world, &chain(0..1), None, 0)[0];
    world.commit(slot, page);
    let slots = round(&mut world, 1);
    end_round(&mut world, &slots, false);
    assert!(world.core.slot(slot).is_some(), "the write reads it");
    let effects = world.step(Event::Written { slot, extent: Some(ExtentId(7)) });
    assert_eq!((erased(&effects), world.core.slot(slot)), (vec![7], None));
}
