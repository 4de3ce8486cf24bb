//! A core with one scheduler, one worker and a small pool, and words for stories about it.

use orbitkv_core::{
    BlockHash, ClientId, Config, Core, Demand, Effect, Event, Grant, GroupId, GroupSpec, InstanceId, Micros,
    NamespaceDigest, OperationId, OperationOutcome, PagePart, Refusal, Revision, Role, SaveRequest,
    SegmentId, SessionId, SessionSpec, SlotRef, Ticket,
};

pub(crate) const SCHEDULER: SessionId = SessionId(1);
pub(crate) const WORKER: SessionId = SessionId(2);
pub(crate) const GROUP: GroupId = GroupId(0);
/// 4 KiB of payload behind the 4 KiB header.
pub(crate) const SLOT_BYTES: u64 = 8192;

pub(crate) struct World {
    pub(crate) core: Core,
    pub(crate) now: u64,
    pub(crate) operation: u64,
}

pub(crate) fn hash(n: u8) -> BlockHash {
    BlockHash([n; 32])
}

pub(crate) fn chain(of: std::ops::Range<u8>) -> Vec<BlockHash> {
    of.map(hash).collect()
}

pub(crate) fn spec(role: Role) -> SessionSpec {
    SessionSpec {
        role,
        instance: InstanceId(7),
        world_size: 1,
        namespace: NamespaceDigest([9; 32]),
        groups: vec![GroupSpec::prefix(GROUP, 4096, 1, 16)],
        hash_tokens: 0,
    }
}

impl World {
    /// A pool of that many slots in one segment, one scheduler, one attested worker.
    pub(crate) fn new(slots: u64, change: impl FnOnce(&mut Config)) -> Self {
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

    pub(crate) fn step(&mut self, event: Event<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.now += 1;
        self.core.step(Micros(self.now), event, &mut effects);
        self.core.audit().unwrap();
        effects
    }

    pub(crate) fn later(&mut self, ms: u64) -> Vec<Effect> {
        self.now += ms * 1_000;
        self.step(Event::Tick)
    }

    pub(crate) fn next(&mut self) -> (OperationId, Revision) {
        self.operation += 1;
        (OperationId(self.operation), Revision(1))
    }

    pub(crate) fn reserve(
        &mut self,
        hashes: &[BlockHash],
        parent: Option<BlockHash>,
        first_depth: u32,
    ) -> Vec<Grant> {
        let (operation, revision) = self.next();
        let request = SaveRequest { group: GROUP, parent, first_depth, hashes };
        let effects = self.step(Event::Reserve { session: SCHEDULER, operation, revision, request });
        let granted = effects.into_iter().find_map(|e| match e {
            Effect::Granted { grants, .. } => Some(grants),
            _ => None,
        });
        granted.unwrap().into_iter().map(|g| g.grant).collect()
    }

    pub(crate) fn save(&mut self, hashes: &[BlockHash], parent: Option<BlockHash>, first_depth: u32) {
        let grants = self.reserve(hashes, parent, first_depth);
        for (hash, grant) in hashes.iter().zip(grants) {
            let Grant::Slots(parts) = grant else { panic!("{hash:?}: {grant:?}") };
            assert_eq!(self.commit(parts[0].slot, *hash), []);
        }
    }

    pub(crate) fn commit(&mut self, slot: SlotRef, hash: BlockHash) -> Vec<Effect> {
        self.step(Event::Commit { session: WORKER, slot, hash, crc: 42 })
    }

    pub(crate) fn query(&mut self, hashes: &[BlockHash]) -> (Ticket, Vec<OperationOutcome>) {
        let (operation, revision) = self.next();
        let ticket = Ticket { session: SCHEDULER, operation, revision };
        let effects = self.query_as(ticket, hashes, None);
        (ticket, effects)
    }

    pub(crate) fn query_as(
        &mut self,
        t: Ticket,
        hashes: &[BlockHash],
        deadline_ms: Option<u32>,
    ) -> Vec<OperationOutcome> {
        let demand = Demand { deadline_ms, ..Demand::prefix(GROUP, hashes) };
        let Ticket { session, operation, revision } = t;
        outcomes(self.step(Event::Query { session, operation, revision, demand }))
    }

    /// All that it leases.
    pub(crate) fn restore(&mut self, t: Ticket) -> Vec<Effect> {
        let leased = self.core.operations().find(|view| view.ticket == t).map_or(1, |view| view.pages);
        self.restore_part(t, 0, u32::try_from(leased).unwrap())
    }

    pub(crate) fn restore_part(&mut self, t: Ticket, first: u32, pages: u32) -> Vec<Effect> {
        let Ticket { session, operation, revision } = t;
        self.step(Event::Restore { session, operation, revision, first, pages })
    }

    pub(crate) fn release(&mut self, t: Ticket) -> Vec<Effect> {
        self.step(Event::Release { session: t.session, operation: t.operation, revision: t.revision })
    }
}

/// The slot of a page that got room, of its first shard.
pub(crate) fn slot_of(grant: &Grant) -> SlotRef {
    match grant {
        Grant::Slots(parts) => parts[0].slot,
        other => panic!("no room: {other:?}"),
    }
}

pub(crate) fn outcomes(effects: Vec<Effect>) -> Vec<OperationOutcome> {
    let state = |e| if let Effect::Operation { outcome, .. } = e { Some(outcome) } else { None };
    effects.into_iter().filter_map(state).collect()
}

pub(crate) fn ready(outcomes: &[OperationOutcome]) -> &[PagePart] {
    match outcomes.last() {
        Some(OperationOutcome::Ready { parts, .. }) => parts,
        other => panic!("not ready: {other:?}"),
    }
}

pub(crate) fn refusal(effects: &[Effect]) -> &Refusal {
    match effects {
        [Effect::Refused { refusal, .. }] => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A second instance of two ranks that share one shard, as with MLA; attested.
pub(crate) fn two_ranks(world: &mut World) -> (SessionId, [SessionId; 2]) {
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
