//! Recoveries: all that several cache groups need at one boundary, or nothing.

use crate::tiered::*;
use crate::world::*;
use orbitkv_core::*;

const WINDOW: GroupId = GroupId(1);
const CHECKPOINT: GroupId = GroupId(2);
/// Slots of 4 KiB and 8 KiB payloads.
const SMALL: u64 = SLOT_BYTES;
const LARGE: u64 = 3 * 4096;

/// Full attention and a window of 40 tokens in pages of 16, and a state every 32 tokens: a boundary of 64
/// tokens takes pages 0 to 4, 1 to 4 and 1 to 2.
fn groups() -> Vec<GroupSpec> {
    let window = GroupSpec::prefix(WINDOW, 8192, 1, 16);
    let checkpoint = GroupSpec::prefix(CHECKPOINT, 4096, 1, 32);
    vec![
        GroupSpec::prefix(GROUP, 4096, 1, 16),
        GroupSpec { rule: Rule::Window { tokens: 40 }, ..window },
        GroupSpec { rule: Rule::Checkpoint, ..checkpoint },
    ]
}

/// An engine of those groups in front of a tier.
fn hybrid(change: impl FnOnce(&mut Config)) -> World {
    let mut config = Config::for_pool(1 << 20);
    (config.segment_bytes, config.filling_percent, config.tier) = (1 << 17, 100, true);
    change(&mut config);
    let mut world = World { core: Core::new(config).unwrap(), now: 0, operation: 0 };
    for (session, role) in [(SCHEDULER, Role::Scheduler), (WORKER, Role::Worker { rank: 0 })] {
        let client = ClientId(u128::from(session.0));
        let spec = SessionSpec { groups: groups(), ..spec(role) };
        world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec });
    }
    world.step(Event::Attest { session: WORKER, passed: true });
    for segment in 0..8 {
        world.step(Event::SegmentReady { segment: SegmentId(segment) });
    }
    world
}

/// Saves pages of a group, each named by the hash of its last block.
fn save(world: &mut World, group: GroupId, hashes: &[BlockHash]) {
    let request = SaveRequest { group, parent: None, first_depth: 0, hashes };
    for segment in 0..20 {
        let (operation, revision) = world.next();
        let effects = world.step(Event::Reserve { session: SCHEDULER, operation, revision, request });
        let granted = effects.iter().find_map(|e| match e {
            Effect::Granted { grants, .. } => Some(grants.clone()),
            _ => None,
        });
        for PageGrant { hash, grant } in granted.unwrap() {
            if let Grant::Slots(parts) = grant {
                let slot = parts[0].slot;
                world.step(Event::Commit { session: WORKER, slot, hash, crc: 42 });
                let extent = Some(ExtentId(u64::from(group.0) << 8 | u64::from(hash.0[0])));
                world.step(Event::Written { slot, extent });
            }
        }
        world.step(Event::SegmentReady { segment: SegmentId(segment) });
    }
}

/// All that 96 tokens of a sequence leave behind.
fn save_all(world: &mut World) {
    save(world, GROUP, &chain(0..6));
    save(world, WINDOW, &chain(0..6));
    save(world, CHECKPOINT, &[hash(1), hash(3), hash(5)]);
}

fn to(end_tokens: u32, hashes: &[BlockHash]) -> Recovery<'_> {
    Recovery { start_tokens: 0, end_tokens, hashes, ranges: &[], deadline_ms: None, mode: Mode::Demand }
}

fn ask(world: &mut World, recovery: Recovery<'_>) -> (Ticket, Vec<Effect>) {
    let (operation, revision) = world.next();
    let ticket = Ticket { session: SCHEDULER, operation, revision };
    (ticket, send(world, ticket, recovery))
}

fn send(world: &mut World, ticket: Ticket, recovery: Recovery<'_>) -> Vec<Effect> {
    let Ticket { session, operation, revision } = ticket;
    world.step(Event::Recover { session, operation, revision, recovery })
}

fn candidates(world: &mut World, start_tokens: u32, hashes: &[BlockHash]) -> Vec<u32> {
    let (operation, revision) = world.next();
    let effects =
        world.step(Event::Candidates { session: SCHEDULER, operation, revision, start_tokens, hashes });
    match &effects[..] {
        [Effect::Candidates { boundaries, .. }] => boundaries.clone(),
        other => panic!("no candidates: {other:?}"),
    }
}

fn recovered(outcomes: &[OperationOutcome]) -> (Vec<(u16, u32, u32)>, usize) {
    match outcomes.last() {
        Some(OperationOutcome::Recovered { ranges, parts }) => {
            let range = |r: &RecoveredRange| (r.group.0, r.first_page, r.pages);
            (ranges.iter().map(range).collect(), parts.len())
        }
        other => panic!("not recovered: {other:?}"),
    }
}

const ABSENT: OperationOutcome = OperationOutcome::Miss(MissReason::Absent);
/// What a boundary of 64 tokens takes.
const AT_64: [(u16, u32, u32); 3] = [(0, 0, 4), (1, 1, 3), (2, 1, 1)];
const AT_64_BYTES: u64 = 4 * SMALL + 3 * LARGE + SMALL;

#[test]
fn a_boundary_is_recovered_with_the_pages_of_every_group() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    let (ticket, effects) = ask(&mut world, to(64, &chain(0..6)));
    assert_eq!(recovered(&outcomes(effects)), (AT_64.to_vec(), 8));
    assert_eq!(world.core.ledger().reserved_bytes(), AT_64_BYTES);
    world.restore(ticket);
    world.step(Event::CopyDone { session: WORKER, ticket });
    world.release(ticket);
    assert_eq!((world.core.ledger().reserved_bytes(), world.core.counters().restored_pages), (0, 8));
    // Of what the engine holds already nothing is asked for.
    let recovery = Recovery { start_tokens: 32, ..to(96, &[]) };
    let (_, effects) = ask(&mut world, Recovery { hashes: &chain(0..6), ..recovery });
    assert_eq!(recovered(&outcomes(effects)).0, [(0, 2, 4), (1, 3, 3), (2, 2, 1)]);
}

#[test]
fn a_recovery_is_handed_out_as_a_whole_or_not_at_all() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    let (ticket, _) = ask(&mut world, to(64, &chain(0..6)));
    for (first, pages) in [(0, 7), (1, 7), (7, 1)] {
        let effects = world.restore_part(ticket, first, pages);
        assert_eq!(refusal(&effects), &Refusal::PartOfRecovery { first, pages, leased: 8 });
    }
    for (first, pages) in [(0, 9), (8, 1), (0, 0)] {
        let effects = world.restore_part(ticket, first, pages);
        assert_eq!(refusal(&effects), &Refusal::OutsideLease { first, pages, leased: 8 });
    }
    assert_eq!((world.core.operations_in(Phase::Ready), world.core.counters().restored_pages), (1, 0));
    assert_eq!(world.restore_part(ticket, 0, 8), []);
    assert_eq!(world.core.counters().restored_pages, 8);
}

#[test]
fn candidates_are_a_look_and_name_only_boundaries_that_every_group_has() {
    let mut world = hybrid(|_| {});
    assert_eq!(candidates(&mut world, 0, &chain(0..6)), []);
    save(&mut world, GROUP, &chain(0..6));
    save(&mut world, WINDOW, &chain(0..6));
    assert_eq!(candidates(&mut world, 0, &chain(0..6)), [], "no state was saved");
    save(&mut world, CHECKPOINT, &[hash(1), hash(5)]);
    assert_eq!(candidates(&mut world, 0, &chain(0..6)), [32, 96]);
    assert_eq!(candidates(&mut world, 32, &chain(0..6)), [96]);
    assert_eq!(candidates(&mut world, 0, &chain(0..5)), [32], "96 tokens are not covered");
    // What is stored counts, and is not read for the question.
    world.step(Event::DropUnleased);
    assert_eq!(candidates(&mut world, 0, &chain(0..6)), [32, 96]);
    let owned =
        (world.core.ledger().reserved_bytes(), world.core.used_bytes(), world.core.operations().count());
    assert_eq!(owned, (0, 0, 0));
    assert_eq!(world.core.counters().queries, 0);
    // The middle of the window is enough to lose a boundary that needs it.
    world.step(Event::Forget { session: SCHEDULER, group: WINDOW, hashes: &[hash(4)] });
    assert_eq!(candidates(&mut world, 0, &chain(0..6)), [32]);
}

#[test]
fn an_incomplete_group_leaves_no_lease() {
    for (group, page) in [(GROUP, 0), (GROUP, 3), (WINDOW, 1), (CHECKPOINT, 3)] {
        let mut world = hybrid(|_| {});
        save_all(&mut world);
        world.step(Event::Forget { session: SCHEDULER, group, hashes: &[hash(page)] });
        let (_, effects) = ask(&mut world, to(64, &chain(0..6)));
        assert_eq!(outcomes(effects), [ABSENT], "group {group:?} without page {page}");
        assert_eq!(world.core.ledger().reserved_bytes(), 0);
        world.step(Event::DropUnleased);
        assert_eq!(world.core.used_bytes(), 0, "nothing is leased");
    }
    // Pages that the boundary does not need are not missed.
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    world.step(Event::Forget { session: SCHEDULER, group: WINDOW, hashes: &[hash(0), hash(4)] });
    let (_, effects) = ask(&mut world, to(64, &chain(0..6)));
    assert_eq!(recovered(&outcomes(effects)).0, AT_64);
}

#[test]
fn a_read_that_fails_in_one_group_takes_the_whole_recovery_and_drains() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    world.step(Event::DropUnleased);
    let (ticket, effects) = ask(&mut world, to(64, &chain(0..6)));
    let slots = reads(&effects);
    assert_eq!((slots.len(), world.core.ledger().reserved_bytes()), (8, AT_64_BYTES));
    let window = slots.iter().find(|(_, extent)| extent >> 8 == 1).unwrap().0;
    let missed = outcomes(world.step(Event::ReadDone { slot: window, good: false }));
    assert_eq!(missed, [], "others of its batch are on their way");
    for (slot, _) in slots.iter().filter(|(slot, _)| *slot != window) {
        let owned = world.core.ledger().reserved_bytes();
        assert!(owned > 0, "what was submitted stays charged");
        let outcomes = outcomes(end(&mut world, *slot));
        assert!(outcomes.iter().all(|outcome| *outcome == ABSENT), "{outcomes:?}");
    }
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
    let again = world.restore(ticket);
    assert_eq!(refusal(&again), &Refusal::UnknownOperation);
}

#[test]
fn a_prepared_recovery_is_claimed_by_the_same_one_alone() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    world.step(Event::DropUnleased);
    let hashes = chain(0..6);
    let (ticket, effects) = ask(&mut world, Recovery { mode: Mode::Prepare, ..to(64, &hashes) });
    let mut outcome = Vec::new();
    for (slot, _) in reads(&effects) {
        outcome = outcomes(end(&mut world, slot));
    }
    assert_eq!(outcome, [OperationOutcome::Prepared { pages: 8 }]);
    assert_eq!(world.core.ledger().account_bytes(Account::Prepared), AT_64_BYTES);
    let Ticket { session, operation, revision } = ticket;
    // An ordinary query of the same pages, of the whole batch, and of the recovery's own list.
    for pages in [&hashes[..4], &hashes[..]] {
        let demand = Demand { strict: true, ..Demand::prefix(GROUP, pages) };
        for demand in [demand, Demand::prefix(GROUP, pages)] {
            let effects = world.step(Event::Query { session, operation, revision, demand });
            assert_eq!(refusal(&effects), &Refusal::ParametersChanged);
        }
    }
    // The same hashes with another boundary, or from another start.
    for recovery in [to(96, &hashes), Recovery { start_tokens: 32, ..to(64, &hashes) }, to(32, &hashes)] {
        assert_eq!(refusal(&send(&mut world, ticket, recovery)), &Refusal::ParametersChanged);
    }
    // Other hashes with the same boundary: one of a group that is no prefix.
    let mut other = hashes.clone();
    other[3] = hash(99);
    assert_eq!(refusal(&send(&mut world, ticket, to(64, &other))), &Refusal::ParametersChanged);
    // More hashes behind the boundary change nothing of what is asked.
    let claimed = outcomes(send(&mut world, ticket, to(64, &hashes[..4])));
    assert_eq!(recovered(&claimed), (AT_64.to_vec(), 8));
    assert_eq!((world.core.counters().claims, world.core.counters().queries), (1, 1));
    assert_eq!(world.core.ledger().account_bytes(Account::Ready), AT_64_BYTES);
}

#[test]
fn the_same_hashes_at_another_place_are_another_recovery() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    let hashes = chain(0..4);
    let later = Recovery { start_tokens: 32, mode: Mode::Prepare, ..to(64, &hashes) };
    let (ticket, effects) = ask(&mut world, later);
    assert_eq!(outcomes(effects), [OperationOutcome::Prepared { pages: 5 }]);
    // Pages 0 and 1 of a sequence that begins with what were pages 2 and 3.
    assert_eq!(refusal(&send(&mut world, ticket, to(32, &hashes[2..]))), &Refusal::ParametersChanged);
}

#[test]
fn one_that_is_cancelled_pays_for_each_page_until_it_has_landed() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    world.step(Event::DropUnleased);
    let (ticket, effects) = ask(&mut world, to(64, &chain(0..6)));
    let Ticket { session, operation, revision } = ticket;
    world.step(Event::Cancel { session, operation, revision });
    let mut owned = AT_64_BYTES;
    // The last ones first: pages of different groups are of different size.
    for (slot, extent) in reads(&effects).into_iter().rev() {
        assert_eq!(world.core.ledger().reserved_bytes(), owned);
        end(&mut world, slot);
        owned -= if extent >> 8 == u64::from(WINDOW.0) { LARGE } else { SMALL };
    }
    assert_eq!((world.core.ledger().reserved_bytes(), owned), (0, 0));
}

#[test]
fn a_prepared_recovery_that_loses_a_page_is_a_miss() {
    let mut world = hybrid(|_| {});
    save_all(&mut world);
    let hashes = chain(0..6);
    let (ticket, effects) = ask(&mut world, Recovery { mode: Mode::Prepare, ..to(64, &hashes) });
    assert_eq!(outcomes(effects), [OperationOutcome::Prepared { pages: 8 }]);
    world.step(Event::Forget { session: SCHEDULER, group: CHECKPOINT, hashes: &[hash(3)] });
    assert_eq!(outcomes(send(&mut world, ticket, to(64, &hashes))), [ABSENT]);
    assert_eq!(world.core.ledger().reserved_bytes(), 0);
}

#[test]
fn one_larger_than_its_budget_is_a_miss_at_once() {
    let mut world = hybrid(|config| {
        config.query_instance_budget_bytes = AT_64_BYTES - 1;
    });
    save_all(&mut world);
    let (_, effects) = ask(&mut world, to(64, &chain(0..6)));
    assert_eq!(outcomes(effects), [OperationOutcome::Miss(MissReason::Budget)]);
    let (_, effects) = ask(&mut world, to(32, &chain(0..6)));
    assert_eq!(recovered(&outcomes(effects)).0, [(0, 0, 2), (1, 0, 2), (2, 0, 1)]);
}

#[test]
fn what_the_contract_does_not_allow_is_refused_by_name() {
    let mut world = hybrid(|config| config.parts_per_answer = 9);
    save_all(&mut world);
    let hashes = chain(0..6);
    let range = |group, first_page, end_page| GroupRange { group, first_page, end_page };
    let good = [range(0, 0, 4), range(1, 1, 4), range(2, 1, 2)];
    let mut refused = |recovery: Recovery<'_>| {
        let (ticket, effects) = ask(&mut world, recovery);
        let text = refusal(&effects).to_string();
        // Nothing is begun, and the name is not used up.
        let (start_tokens, end_tokens, ranges) = (0, 64, &good[..]);
        let right = Recovery { start_tokens, end_tokens, ranges, mode: Mode::Demand, ..recovery };
        let outcome = outcomes(send(&mut world, ticket, Recovery { hashes: &hashes, ..right }));
        assert_eq!(recovered(&outcome).1, 8);
        world.release(ticket);
        text
    };
    let end = |end_tokens| Recovery { ranges: &[], ..to(end_tokens, &hashes) };
    let text = refused(end(128));
    assert!(text.contains("past the 96 tokens that the 6 hashes cover"), "{text}");
    let text = refused(end(48));
    assert!(text.contains("end 48 is no boundary; boundaries are multiples of 32 tokens"), "{text}");
    let text = refused(Recovery { start_tokens: 64, ..end(64) });
    assert!(text.contains("from token 64 to 64 is empty"), "{text}");
    let text = refused(end(96));
    assert!(text.contains("parts of one answer (at most 9)"), "{text}");
    let text = refused(Recovery { hashes: &[], ..end(64) });
    assert!(text.contains("0 hashes in one request"), "{text}");
    let named = |ranges| Recovery { ranges, ..to(64, &hashes) };
    let text = refused(named(&good[..2]));
    assert!(text.contains("cache group 2: the demand names pages none; the contract takes 1 to 2"), "{text}");
    let overlapping = [good[0], good[1], good[2], range(1, 0, 2)];
    let text = refused(named(&overlapping));
    assert!(text.contains("names cache group 1 twice"), "{text}");
    let shifted = [good[0], range(1, 0, 4), good[2]];
    let text = refused(named(&shifted));
    assert!(
        text.contains("cache group 1: the demand names pages 0 to 4; the contract takes 1 to 4"),
        "{text}"
    );
    assert!(world.core.marked(Mark::RecoveryRefused));
}

#[test]
fn only_a_scheduler_recovers() {
    let mut world = hybrid(|_| {});
    let hashes = chain(0..6);
    let (operation, revision) = world.next();
    let recover = Event::Recover { session: WORKER, operation, revision, recovery: to(64, &hashes) };
    let candidates =
        Event::Candidates { session: WORKER, operation, revision, start_tokens: 0, hashes: &hashes };
    for event in [recover, candidates] {
        let effects = world.step(event);
        assert!(matches!(refusal(&effects), Refusal::WrongRole { role: "worker", .. }), "{effects:?}");
    }
}

#[test]
fn a_registration_whose_contract_contradicts_itself_is_refused() {
    let mut core = Core::new(Config::for_pool(1 << 20)).unwrap();
    let mut open = |groups, hash_tokens| {
        let spec = SessionSpec { groups, hash_tokens, ..spec(Role::Scheduler) };
        let (session, client) = (SCHEDULER, ClientId(1));
        let mut effects = Vec::new();
        core.step(Micros(1), Event::SessionOpened { session, client, epoch: 1, spec: &spec }, &mut effects);
        refusal(&effects).to_string()
    };
    let text = open(groups(), 24);
    assert!(text.contains("pages of 16 tokens, which hashes of 24 tokens do not divide"), "{text}");
    let text = open(vec![GroupSpec::prefix(GROUP, 4096, 1, 0)], 0);
    assert!(text.contains("cache group 0 has pages of 0 tokens"), "{text}");
}

#[test]
fn the_last_pages_of_a_window_outlive_its_first_ones() {
    // Room for one segment of each class: the second chain pushes the first one out page by page.
    let mut world = hybrid(|config| config.tier = false);
    let saved: Vec<BlockHash> = chain(0..40);
    save(&mut world, WINDOW, &saved);
    let (_, effects) = ask(&mut world, to(32, &chain(0..2)));
    assert_eq!(outcomes(effects), [ABSENT], "nothing of the other groups");
    let held = |world: &mut World, page: u8| {
        let (operation, revision) = world.next();
        let demand = Demand::prefix(WINDOW, std::slice::from_ref(&saved[usize::from(page)]));
        let ticket = Ticket { session: SCHEDULER, operation, revision };
        let effects = outcomes(world.step(Event::Query { session: SCHEDULER, operation, revision, demand }));
        world.release(ticket);
        matches!(effects.last(), Some(OperationOutcome::Ready { .. }))
    };
    assert!(held(&mut world, 39));
    let more: Vec<BlockHash> = chain(100..160);
    save(&mut world, WINDOW, &more);
    assert!(!held(&mut world, 0), "a chain would have kept its head");
    assert!(held(&mut world, 39), "used last");
}
