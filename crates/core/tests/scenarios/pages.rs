//! Saves, sealing, eviction and memory.

use crate::world::*;
use orbitkv_core::*;

#[test]
fn nothing_is_visible_before_commit() {
    let mut world = World::new(4, |_| {});
    let grants = world.reserve(&chain(0..1), None, 0);
    let Grant::Slots(parts) = &grants[0] else { panic!("{grants:?}") };
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)]);
    world.commit(parts[0].slot, hash(0));
    assert_eq!(ready(&world.query(&chain(0..1)).1).len(), 1);
}

#[test]
fn a_commit_for_another_page_or_by_another_session_is_refused() {
    let mut world = World::new(4, |_| {});
    let Grant::Slots(parts) = world.reserve(&chain(0..1), None, 0).remove(0) else { panic!() };
    let slot = parts[0].slot;
    assert_eq!(refusal(&world.commit(slot, hash(1))), &Refusal::WrongPage);
    let by_scheduler = world.step(Event::Commit { session: SCHEDULER, slot, hash: hash(0), crc: 1 });
    assert_eq!(refusal(&by_scheduler), &Refusal::NotInCustody);
    let stale = SlotRef { generation: slot.generation + 1, ..slot };
    assert_eq!(refusal(&world.commit(stale, hash(0))), &Refusal::NotInCustody);
}

#[test]
fn the_tail_of_a_chain_goes_before_its_head() {
    let mut world = World::new(4, |_| {});
    world.save(&chain(0..4), None, 0);
    world.save(&chain(100..102), None, 0);
    assert_eq!(ready(&world.query(&chain(0..4)).1).len(), 2, "pages 3 and 2 made room");
}

#[test]
fn a_head_that_was_sealed_after_its_tail_stays_too() {
    let mut world = World::new(4, |_| {});
    let pages = chain(0..4);
    let slots: Vec<SlotRef> = world.reserve(&pages, None, 0).iter().map(slot_of).collect();
    for i in [1, 0, 3, 2] {
        world.commit(slots[i], pages[i]);
    }
    assert!(world.core.marked(Mark::SealedAfterChild));
    world.save(&chain(100..102), None, 0);
    assert_eq!(ready(&world.query(&pages).1).len(), 2, "pages 3 and 2 made room");
}

#[test]
fn a_head_stays_while_what_follows_is_being_saved() {
    let mut world = World::new(2, |_| {});
    let pages = chain(0..2);
    world.save(&pages[..1], None, 0);
    let tail = world.reserve(&pages[1..], Some(pages[0]), 1);
    assert_eq!(world.reserve(&chain(100..101), None, 0), [Grant::Refused], "the head is no leaf");
    world.step(Event::Abort { session: WORKER, slot: slot_of(&tail[0]) });
    world.save(&chain(100..102), None, 0);
    assert_eq!(world.query(&pages[..1]).1, [OperationOutcome::Miss(MissReason::Absent)]);
}

#[test]
fn a_head_that_comes_back_is_the_parent_of_what_stayed() {
    let mut world = World::new(3, |_| {});
    let pages = chain(0..2);
    world.save(&pages, None, 0);
    world.step(Event::Forget { session: SCHEDULER, group: GROUP, hashes: &pages[..1] });
    world.save(&pages[..1], None, 0);
    let (ticket, _) = world.query(&pages[1..]);
    world.release(ticket);
    world.save(&chain(100..102), None, 0);
    assert_eq!(ready(&world.query(&pages).1).len(), 1, "the tail made room, used last as it was");
}

#[test]
fn a_leased_page_is_never_evicted() {
    let mut world = World::new(2, |c| c.query_budget_bytes = c.pool_bytes);
    world.core.config().check().unwrap();
    world.save(&chain(0..1), None, 0);
    let (ticket, outcome) = world.query(&chain(0..1));
    let slot = ready(&outcome)[0].slot;
    world.save(&chain(10..11), None, 0);
    let grants = world.reserve(&chain(20..22), None, 0);
    assert!(matches!(grants[..], [Grant::Slots(_), Grant::Refused]), "{grants:?}");
    assert!(world.core.slots().any(|s| s.slot == slot && s.state == SlotState::Resident));
    world.release(ticket);
}

#[test]
fn reset_hides_pages_that_are_still_being_saved() {
    let mut world = World::new(4, |_| {});
    let Grant::Slots(parts) = world.reserve(&chain(0..1), None, 0).remove(0) else { panic!() };
    world.step(Event::Reset { session: SCHEDULER });
    world.commit(parts[0].slot, hash(0));
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)]);
    assert_eq!(world.core.used_bytes(), 0);
}

#[test]
fn every_rank_writes_its_own_probe_page() {
    let mut world = World::new(8, |_| {});
    let (_, workers) = two_ranks(&mut world);
    for (n, session) in workers.into_iter().enumerate() {
        let hashes = [hash(200 + n as u8)];
        let request = SaveRequest { group: GroupId::PROBE, parent: None, first_depth: 0, hashes: &hashes };
        let (operation, revision) = (OperationId(1), Revision(1));
        let effects = world.step(Event::Reserve { session, operation, revision, request });
        let [Effect::Granted { grants, .. }] = &effects[..] else { panic!("{effects:?}") };
        let Grant::Slots(parts) = &grants[0].grant else { panic!("{grants:?}") };
        let commit = Event::Commit { session, slot: parts[0].slot, hash: hashes[0], crc: 1 };
        assert_eq!(world.step(commit), [], "the rank that reserved is the one that writes");
    }
}

#[test]
fn a_reservation_refused_by_a_limit_stays_refused() {
    let mut world = World::new(4, |c| c.saves_per_session = 1);
    let open = world.reserve(&chain(0..1), None, 0);
    let (operation, revision) = world.next();
    let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &chain(5..6) };
    let reserve = Event::Reserve { session: SCHEDULER, operation, revision, request };
    assert!(matches!(refusal(&world.step(reserve)), Refusal::Limit { .. }));
    world.commit(slot_of(&open[0]), hash(0));
    assert_eq!(refusal(&world.step(reserve)), &Refusal::RetiredOperation);
    assert_eq!(world.core.filling_bytes(), 0);
}

#[test]
fn shards_of_one_pool_do_not_take_each_others_segments_in_turn() {
    // Room for three segments of two slots: one for each of two shards, and a spare one.
    let pool_bytes = 6 * SLOT_BYTES;
    let config = Config { segment_bytes: 2 * SLOT_BYTES, ..Config::for_pool(pool_bytes) };
    let config = Config { filling_percent: 100, ..config };
    let mut world = World { core: Core::new(config).unwrap(), now: 0, operation: 0 };
    let roles = [Role::Scheduler, Role::Worker { rank: 0 }, Role::Worker { rank: 1 }];
    for (n, role) in (1..).zip(roles) {
        let groups = vec![GroupSpec::prefix(GROUP, 4096, 2, 16)];
        let spec = SessionSpec { world_size: 2, groups, ..spec(role) };
        let (session, client) = (SessionId(n), ClientId(u128::from(n)));
        world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec });
        world.step(Event::Attest { session, passed: true });
    }
    for segment in [0, 1] {
        world.step(Event::SegmentReady { segment: SegmentId(segment) });
    }
    for page in 0..6 {
        let mut granted = false;
        for segment in 2..40 {
            let grants = world.reserve(&chain(page..page + 1), None, 0);
            if let Grant::Slots(parts) = &grants[0] {
                for (part, session) in parts.iter().zip([SessionId(2), SessionId(3)]) {
                    world.step(Event::Commit { session, slot: part.slot, hash: hash(page), crc: 42 });
                }
                granted = true;
                break;
            }
            // Whatever was asked for comes at once.
            world.step(Event::SegmentReady { segment: SegmentId(segment) });
        }
        assert!(granted, "page {page} never gets its slots");
    }
}

#[test]
fn the_next_segment_is_asked_for_before_the_last_slot_is_taken() {
    let mut world = World::new(16, |c| c.segment_bytes = c.pool_bytes / 2);
    let grows = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::GrowSegment { .. }));
    let mut reserve = |hashes: &[BlockHash]| {
        let (operation, revision) = world.next();
        let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes };
        world.step(Event::Reserve { session: SCHEDULER, operation, revision, request })
    };
    assert!(!grows(&reserve(&chain(0..6))), "a quarter of the segment is left");
    assert!(grows(&reserve(&chain(6..7))));
    assert!(!grows(&reserve(&chain(7..8))), "one is on its way");
}

#[test]
fn whoever_is_told_to_wait_asks_for_a_segment_and_no_more_than_sixteen_come_at_once() {
    let mut world = World::new(128, |c| c.segment_bytes = 2 * SLOT_BYTES);
    let mut reserve = |first: u8| {
        let (operation, revision) = world.next();
        let hashes = chain(first..first + 4);
        let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &hashes };
        let effects = world.step(Event::Reserve { session: SCHEDULER, operation, revision, request });
        effects.iter().filter(|e| matches!(e, Effect::GrowSegment { .. })).count()
    };
    let asked: Vec<usize> = (0..20).map(|n| reserve(4 * n)).collect();
    assert!(asked.iter().all(|count| *count <= 2), "{asked:?}");
    assert_eq!(asked.iter().sum::<usize>(), 16, "{asked:?}");
    // The first was made when the worker came.
    (1..17).for_each(|segment| drop(world.step(Event::SegmentReady { segment: SegmentId(segment) })));
    let granted = world.reserve(&chain(100..132), None, 0);
    assert!(granted.iter().all(|grant| matches!(grant, Grant::Slots(_))), "{granted:?}");
}

#[test]
fn a_shard_that_waits_takes_no_segment_that_the_others_need() {
    let mut world = World::new(16, |c| c.segment_bytes = 2 * SLOT_BYTES);
    let session = SessionId(11);
    let roles = [Role::Scheduler, Role::Worker { rank: 0 }, Role::Worker { rank: 1 }];
    for (number, role) in (11..).zip(roles) {
        let groups = vec![GroupSpec::prefix(GROUP, 4096, 2, 16)];
        let namespace = NamespaceDigest([8; 32]);
        let spec = SessionSpec { instance: InstanceId(8), world_size: 2, namespace, groups, ..spec(role) };
        let (session, client) = (SessionId(number), ClientId(u128::from(number)));
        world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec });
        world.step(Event::Attest { session, passed: true });
    }
    let mut reserve = |first: u8| {
        let (operation, revision) = world.next();
        let hashes = chain(first..first + 4);
        let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &hashes };
        let effects = world.step(Event::Reserve { session, operation, revision, request });
        effects.iter().filter(|e| matches!(e, Effect::GrowSegment { .. })).count()
    };
    // Both first segments are on their way since the workers came, and waiting asks for no more.
    assert_eq!((0..20).map(|n| reserve(4 * n)).sum::<usize>(), 0);
}

#[test]
fn a_repeated_reservation_names_no_slot_that_has_been_written() {
    let mut world = World::new(4, |_| {});
    let pages = chain(0..2);
    let (operation, revision) = world.next();
    let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &pages };
    let reserve = Event::Reserve { session: SCHEDULER, operation, revision, request };
    let grants = |effects: Vec<Effect>| match effects.into_iter().next() {
        Some(Effect::Granted { grants, .. }) => grants,
        other => panic!("not granted: {other:?}"),
    };
    let first = grants(world.step(reserve));
    world.commit(slot_of(&first[0].grant), pages[0]);
    let again = grants(world.step(reserve));
    assert_eq!((&again[0].grant, &again[1]), (&Grant::Exists, &first[1]));
}
