//! Words for stories about a pool with a slower tier behind it.

use crate::world::*;
use orbitkv_core::*;

/// A pool of that many slots in front of a tier.
pub(crate) fn tiered(slots: u64, change: impl FnOnce(&mut Config)) -> World {
    World::new(slots, |config| {
        config.tier = true;
        config.query_budget_bytes = config.pool_bytes;
        config.query_instance_budget_bytes = config.pool_bytes;
        change(config);
    })
}

/// A page of this chain is saved, written and dropped from memory.
pub(crate) fn store(world: &mut World, pages: std::ops::Range<u8>) {
    let parent = pages.start.checked_sub(1).map(hash);
    let first_depth = u32::from(pages.start);
    for (slot, page) in slots_for(world, &chain(pages), parent, first_depth) {
        let effects = world.commit(slot, page);
        let [Effect::Write { slot, .. }] = effects[..] else { panic!("not written: {effects:?}") };
        world.step(Event::Written { slot, extent: Some(ExtentId(u64::from(page.0[0]))) });
    }
    world.step(Event::DropUnleased);
    assert_eq!(world.core.used_bytes(), 0);
}

pub(crate) fn slots_for(
    world: &mut World,
    pages: &[BlockHash],
    parent: Option<BlockHash>,
    depth: u32,
) -> Vec<(SlotRef, BlockHash)> {
    let grants = world.reserve(pages, parent, depth);
    grants.iter().map(slot_of).zip(pages.iter().copied()).collect()
}

/// Reads that an event asked for: slot and extent.
pub(crate) fn reads(effects: &[Effect]) -> Vec<(SlotRef, u64)> {
    let read = |effect: &Effect| match effect {
        Effect::Read { slot, extent, .. } => Some((*slot, extent.0)),
        _ => None,
    };
    effects.iter().filter_map(read).collect()
}

pub(crate) fn erased(effects: &[Effect]) -> Vec<u64> {
    let erase = |e: &Effect| if let Effect::Erase { extent } = e { Some(extent.0) } else { None };
    effects.iter().filter_map(erase).collect()
}

/// A query and the slots of its first reads.
pub(crate) fn ask(
    world: &mut World,
    pages: &[BlockHash],
    deadline_ms: Option<u32>,
) -> (Ticket, Vec<SlotRef>) {
    let (operation, revision) = world.next();
    let ticket = Ticket { session: SCHEDULER, operation, revision };
    let demand = Demand { deadline_ms, ..Demand::prefix(GROUP, pages) };
    let effects = world.step(Event::Query { session: SCHEDULER, operation, revision, demand });
    let slots = reads(&effects).into_iter().map(|(slot, _)| slot).collect();
    assert_eq!(outcomes(effects).last(), Some(&OperationOutcome::Waiting));
    (ticket, slots)
}

pub(crate) fn end(world: &mut World, slot: SlotRef) -> Vec<Effect> {
    world.step(Event::ReadDone { slot, good: true })
}

pub(crate) fn preparing(world: &World) -> u64 {
    world.core.ledger().account_bytes(Account::Preparing)
}

/// Pages that are saved and that the tier could not take.
pub(crate) fn save_unwritten(world: &mut World, pages: std::ops::Range<u8>) {
    for (slot, page) in slots_for(world, &chain(pages), None, 0) {
        world.commit(slot, page);
        world.step(Event::Written { slot, extent: None });
    }
}
