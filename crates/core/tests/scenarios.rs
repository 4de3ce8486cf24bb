//! Short stories through the public interface, each about one promise.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests stop the test")]

use orbitkv_core::{
    Account, BlockHash, ClientId, Config, Core, Demand, Effect, Event, Evidence, Grant, GroupId, GroupSpec,
    InstanceId, Micros, MissReason, NamespaceDigest, OperationId, OperationOutcome, PagePart, Phase, Refusal,
    Revision, Role, SaveRequest, SegmentId, SessionId, SessionSpec, SlotRef, SlotState, Ticket,
};

const SCHEDULER: SessionId = SessionId(1);
const WORKER: SessionId = SessionId(2);
const GROUP: GroupId = GroupId(0);
/// 4 KiB of payload behind the 4 KiB header.
const SLOT_BYTES: u64 = 8192;

struct World {
    core: Core,
    now: u64,
    operation: u64,
}

fn hash(n: u8) -> BlockHash {
    BlockHash([n; 32])
}

fn chain(of: std::ops::Range<u8>) -> Vec<BlockHash> {
    of.map(hash).collect()
}

fn spec(role: Role) -> SessionSpec {
    SessionSpec {
        role,
        instance: InstanceId(7),
        world_size: 1,
        namespace: NamespaceDigest([9; 32]),
        groups: vec![GroupSpec { group: GROUP, page_bytes: 4096, shard_count: 1 }],
    }
}

impl World {
    /// A pool of that many slots in one segment, one scheduler, one attested worker.
    fn new(slots: u64, change: impl FnOnce(&mut Config)) -> Self {
        let pool_bytes = slots * SLOT_BYTES;
        let mut config = Config { segment_bytes: pool_bytes, ..Config::for_pool(pool_bytes) };
        config.filling_percent = 100;
        change(&mut config);
        let mut world = Self { core: Core::new(config).unwrap(), now: 0, operation: 0 };
        for (session, role) in [(SCHEDULER, Role::Scheduler), (WORKER, Role::Worker { rank: 0 })] {
            let client = ClientId(u128::from(session.0));
            world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec(role) });
        }
        world.step(Event::SegmentReady { segment: SegmentId(0) });
        let effects = world.step(Event::Attest { session: WORKER, passed: true });
        assert_eq!(effects, [Effect::InstanceState { session: SCHEDULER, active: true }]);
        world
    }

    fn step(&mut self, event: Event<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.now += 1;
        self.core.step(Micros(self.now), event, &mut effects);
        self.core.audit().unwrap();
        effects
    }

    fn later(&mut self, ms: u64) -> Vec<Effect> {
        self.now += ms * 1_000;
        self.step(Event::Tick)
    }

    fn next(&mut self) -> (OperationId, Revision) {
        self.operation += 1;
        (OperationId(self.operation), Revision(1))
    }

    fn reserve(&mut self, hashes: &[BlockHash], parent: Option<BlockHash>, first_depth: u32) -> Vec<Grant> {
        let (operation, revision) = self.next();
        let request = SaveRequest { group: GROUP, parent, first_depth, hashes };
        let effects = self.step(Event::Reserve { session: SCHEDULER, operation, revision, request });
        let granted = effects.into_iter().find_map(|e| match e {
            Effect::Granted { grants, .. } => Some(grants),
            _ => None,
        });
        granted.unwrap().into_iter().map(|g| g.grant).collect()
    }

    fn save(&mut self, hashes: &[BlockHash], parent: Option<BlockHash>, first_depth: u32) {
        let grants = self.reserve(hashes, parent, first_depth);
        for (hash, grant) in hashes.iter().zip(grants) {
            let Grant::Slots(parts) = grant else { panic!("{hash:?}: {grant:?}") };
            assert_eq!(self.commit(parts[0].slot, *hash), []);
        }
    }

    fn commit(&mut self, slot: SlotRef, hash: BlockHash) -> Vec<Effect> {
        self.step(Event::Commit { session: WORKER, slot, hash, crc: 42 })
    }

    fn query(&mut self, hashes: &[BlockHash]) -> (Ticket, Vec<OperationOutcome>) {
        let (operation, revision) = self.next();
        let ticket = Ticket { session: SCHEDULER, operation, revision };
        let effects = self.query_as(ticket, hashes, None);
        (ticket, effects)
    }

    fn query_as(
        &mut self,
        t: Ticket,
        hashes: &[BlockHash],
        deadline_ms: Option<u32>,
    ) -> Vec<OperationOutcome> {
        let demand = Demand { group: GROUP, hashes, deadline_ms };
        let Ticket { session, operation, revision } = t;
        outcomes(self.step(Event::Query { session, operation, revision, demand }))
    }

    fn restore(&mut self, t: Ticket) -> Vec<Effect> {
        self.step(Event::Restore { session: t.session, operation: t.operation, revision: t.revision })
    }

    fn release(&mut self, t: Ticket) -> Vec<Effect> {
        self.step(Event::Release { session: t.session, operation: t.operation, revision: t.revision })
    }
}

fn outcomes(effects: Vec<Effect>) -> Vec<OperationOutcome> {
    let state = |e| if let Effect::Operation { outcome, .. } = e { Some(outcome) } else { None };
    effects.into_iter().filter_map(state).collect()
}

fn ready(outcomes: &[OperationOutcome]) -> &[PagePart] {
    match outcomes.last() {
        Some(OperationOutcome::Ready { parts, .. }) => parts,
        other => panic!("not ready: {other:?}"),
    }
}

fn refusal(effects: &[Effect]) -> &Refusal {
    match effects {
        [Effect::Refused { refusal, .. }] => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

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
        demand: Demand { group: GROUP, hashes: &chain(0..2), deadline_ms: None },
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

#[test]
fn reset_hides_pages_that_are_still_being_saved() {
    let mut world = World::new(4, |_| {});
    let Grant::Slots(parts) = world.reserve(&chain(0..1), None, 0).remove(0) else { panic!() };
    world.step(Event::Reset { session: SCHEDULER });
    world.commit(parts[0].slot, hash(0));
    assert_eq!(world.query(&chain(0..1)).1, [OperationOutcome::Miss(MissReason::Absent)]);
    assert_eq!(world.core.used_bytes(), 0);
}

/// A second instance of two ranks that share one shard, as with MLA; attested.
fn two_ranks(world: &mut World) -> (SessionId, [SessionId; 2]) {
    let sessions = [SessionId(11), SessionId(12), SessionId(13)];
    let roles = [Role::Scheduler, Role::Worker { rank: 0 }, Role::Worker { rank: 1 }];
    for (session, role) in sessions.into_iter().zip(roles) {
        let instance = InstanceId(8);
        let spec = SessionSpec { instance, world_size: 2, ..spec(role) };
        let client = ClientId(u128::from(session.0));
        world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec });
        world.step(Event::Attest { session, passed: true });
    }
    (sessions[0], [sessions[1], sessions[2]])
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

#[test]
fn a_reservation_refused_by_a_limit_stays_refused() {
    let mut world = World::new(4, |c| c.operations_per_session = 1);
    world.save(&chain(0..1), None, 0);
    let (ticket, _) = world.query(&chain(0..1));
    let (operation, revision) = world.next();
    let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &chain(5..6) };
    let reserve = Event::Reserve { session: SCHEDULER, operation, revision, request };
    assert!(matches!(refusal(&world.step(reserve)), Refusal::Limit { .. }));
    world.release(ticket);
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
        let groups = vec![GroupSpec { group: GROUP, page_bytes: 4096, shard_count: 2 }];
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
