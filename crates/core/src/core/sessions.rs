//! Connections come and go; custody outlives them.

use super::{Core, Outcome};
use crate::instance::Instance;
use crate::session::{Link, Session};
use crate::{
    ClientId, Effect, Evidence, InstanceId, Mark, NamespaceDigest, NamespaceId, Plant, Refusal, Role,
    SessionId, SessionSpec,
};
use orbitkv_contract::Contract;
use std::collections::BTreeMap;

impl Core {
    pub(super) fn open(
        &mut self,
        session: SessionId,
        client: ClientId,
        epoch: u32,
        spec: &SessionSpec,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let contract = spec.check()?;
        if self.sessions.contains_key(&session) {
            return Err(Refusal::BadSpec("session number is in use"));
        }
        if self.sessions.len() >= self.config.sessions {
            return Err(Refusal::Limit { what: "sessions", max: self.config.sessions });
        }
        self.fence_older_epoch(client, epoch, effects)?;
        self.check_seat(spec, &contract)?;
        let instance = self.join(spec, contract);
        let (role, epoch) = (spec.role, epoch);
        self.clients.insert(client, session);
        self.sessions.insert(
            session,
            Session {
                client,
                epoch,
                role,
                instance,
                link: Link::Open,
                attested: false,
                last_operation: None,
                operations: 0,
                saves: 0,
                writing: 0,
                owing: 0,
            },
        );
        let Some(seats) = self.instances.get_mut(&instance) else {
            return Ok(());
        };
        if role.schedules() {
            seats.scheduler = Some(session);
        }
        if let Some(rank) = role.rank() {
            seats.workers.insert(rank, session);
            self.share_segments(session, effects);
            self.grow_first(session, effects);
        }
        self.refresh_active(instance, effects);
        self.tell_scheduler(instance, effects);
        Ok(())
    }

    /// A client has one live session: a newer epoch closes the older one, an older epoch is refused.
    fn fence_older_epoch(
        &mut self,
        client: ClientId,
        epoch: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Some(&older) = self.clients.get(&client) else {
            return Ok(());
        };
        let Some(known) = self.sessions.get(&older) else {
            return Ok(());
        };
        if epoch <= known.epoch {
            let last = known.epoch;
            self.mark(Mark::EpochStale);
            return Err(Refusal::StaleEpoch { got: epoch, last });
        }
        if known.link == Link::Open {
            self.mark(Mark::EpochFenced);
            effects.push(Effect::CloseSession { session: older });
            self.closed(older, effects);
        }
        Ok(())
    }

    fn check_seat(&mut self, spec: &SessionSpec, contract: &Contract) -> Result<(), Refusal> {
        let Some(instance) = self.instances.get(&spec.instance) else {
            return Ok(());
        };
        let mismatch = |what| Err(Refusal::InstanceMismatch { what });
        if self.namespaces.get(&spec.namespace) != Some(&instance.namespace) {
            return mismatch("namespace");
        }
        if instance.world_size != spec.world_size {
            return mismatch("world size");
        }
        if instance.groups != spec.groups {
            return mismatch("list of cache groups");
        }
        if instance.contract != *contract {
            return mismatch("number of tokens in a hash");
        }
        let scheduler_taken = spec.role.schedules() && instance.scheduler.is_some();
        let rank_taken = spec.role.rank().is_some_and(|r| instance.workers.contains_key(&r));
        if scheduler_taken || rank_taken {
            self.mark(Mark::SeatTaken);
            return Err(Refusal::SeatTaken { role: spec.role.name() });
        }
        Ok(())
    }

    fn join(&mut self, spec: &SessionSpec, contract: Contract) -> InstanceId {
        let namespace = self.intern(spec.namespace);
        let instance = self.instances.entry(spec.instance).or_insert_with(|| Instance {
            namespace,
            world_size: spec.world_size,
            groups: spec.groups.clone(),
            contract,
            scheduler: None,
            workers: BTreeMap::new(),
            sessions: 0,
            active: false,
        });
        instance.sessions += 1;
        spec.instance
    }

    pub(super) fn intern(&mut self, digest: NamespaceDigest) -> NamespaceId {
        if let Some(id) = self.namespaces.get(&digest) {
            return *id;
        }
        let id = NamespaceId(self.next_namespace);
        self.next_namespace += 1;
        self.namespaces.insert(digest, id);
        self.digests.insert(id, digest);
        id
    }

    /// The open session, or a refusal.
    pub(super) fn session(&self, session: SessionId) -> Result<&Session, Refusal> {
        self.sessions.get(&session).filter(|s| s.link == Link::Open).ok_or(Refusal::UnknownSession)
    }

    /// Interest of the session ends. Its custody stays until [`Core::gone`].
    pub(super) fn closed(&mut self, session: SessionId, effects: &mut Vec<Effect>) -> Option<Outcome> {
        let known = self.sessions.get_mut(&session).filter(|s| s.link == Link::Open)?;
        known.link = Link::Closed;
        known.attested = false;
        let (role, instance) = (known.role, known.instance);
        if let Some(seats) = self.instances.get_mut(&instance) {
            seats.scheduler = seats.scheduler.filter(|s| *s != session);
            seats.workers.retain(|_, worker| *worker != session);
        }
        for ticket in self.operations.tickets(Some(session)) {
            if role == Role::Scheduler {
                self.presume_handed_out(ticket);
            }
            self.stop(ticket);
        }
        if role.rank().is_some() {
            self.quarantine(session);
        }
        if role.schedules() {
            self.ask_to_fence(session, instance, effects);
        }
        self.refresh_active(instance, effects);
        self.forget_idle_session(session);
        None
    }

    /// Workers that are still connected may hold work of an ended scheduler session.
    fn ask_to_fence(&mut self, scheduler: SessionId, instance: InstanceId, effects: &mut Vec<Effect>) {
        let Some(seats) = self.instances.get(&instance) else {
            return;
        };
        let workers: Vec<_> = seats.workers.values().copied().collect();
        for session in workers {
            self.mark(Mark::FenceAsked);
            effects.push(Effect::Fence { session, scheduler });
        }
    }

    /// Custody of the session ends, by evidence.
    pub(super) fn gone(
        &mut self,
        session: SessionId,
        evidence: Evidence,
        effects: &mut Vec<Effect>,
    ) -> Option<Outcome> {
        if self.session(session).is_ok() {
            self.closed(session, effects);
        }
        self.sessions.get(&session)?;
        if evidence == Evidence::Attested && self.planted(Plant::KeepQuarantine) {
            return None;
        }
        let (drain, quarantine) = match evidence {
            Evidence::ProcessExit => (Mark::DrainedByExit, Mark::QuarantineExit),
            Evidence::Attested => (Mark::DrainedByAttest, Mark::QuarantineAttest),
        };
        self.settle_owing(session, None, drain);
        self.end_writing(session, None, quarantine);
        self.forget_idle_session(session);
        None
    }

    /// A worker attests that no copy for that scheduler session runs or will start.
    pub(super) fn fenced(&mut self, session: SessionId, scheduler: SessionId) -> Result<(), Refusal> {
        if self.session(session)?.role.rank().is_none() {
            return Err(Refusal::WrongRole { role: "scheduler", what: "answer a fence" });
        }
        if self.session(scheduler).is_ok() && scheduler != session {
            return Err(Refusal::WrongPhase { phase: "open", what: "fencing that session" });
        }
        self.settle_owing(session, Some(scheduler), Mark::DrainedByFence);
        self.end_writing(session, Some(scheduler), Mark::FencedWrites);
        self.forget_idle_session(scheduler);
        Ok(())
    }

    pub(super) fn attest(
        &mut self,
        session: SessionId,
        passed: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.session(session)?;
        let Some(known) = self.sessions.get_mut(&session) else {
            return Ok(());
        };
        if known.role.rank().is_none() {
            return Err(Refusal::WrongRole { role: "scheduler", what: "attest" });
        }
        known.attested = passed;
        let instance = known.instance;
        self.refresh_active(instance, effects);
        Ok(())
    }

    /// Active: a scheduler, and every rank connected and attested.
    fn refresh_active(&mut self, id: InstanceId, effects: &mut Vec<Effect>) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        let attested = |s: &SessionId| self.sessions.get(s).is_some_and(|s| s.attested);
        let active = instance.scheduler.is_some()
            && instance.workers.len() == usize::from(instance.world_size)
            && instance.workers.values().all(attested);
        if active != instance.active
            && let Some(instance) = self.instances.get_mut(&id)
        {
            instance.active = active;
            self.tell_scheduler(id, effects);
        }
    }

    fn tell_scheduler(&self, id: InstanceId, effects: &mut Vec<Effect>) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        if let Some(session) = instance.scheduler {
            effects.push(Effect::InstanceState { session, active: instance.active });
        }
    }

    /// Drops what is left of a closed session once nothing of it is owed to anybody.
    pub(super) fn forget_idle_session(&mut self, session: SessionId) {
        let Some(known) = self.sessions.get(&session) else {
            return;
        };
        if known.link == Link::Open || known.is_owed() {
            return;
        }
        let (client, instance) = (known.client, known.instance);
        self.sessions.remove(&session);
        if self.clients.get(&client) == Some(&session) {
            self.clients.remove(&client);
        }
        if let Some(seats) = self.instances.get_mut(&instance) {
            seats.sessions -= 1;
            if seats.sessions == 0 {
                let namespace = seats.namespace;
                self.instances.remove(&instance);
                self.retire_namespace(namespace);
            }
        }
    }

    /// A namespace number is forgotten with its last instance, segment and stored page.
    pub(super) fn retire_namespace(&mut self, namespace: NamespaceId) {
        let in_use = self.instances.values().any(|i| i.namespace == namespace)
            || self.stored.has(namespace)
            || self.finding.as_ref().is_some_and(|finding| finding.has(namespace))
            || self.slots.segments.values().any(|s| s.class.namespace == namespace);
        if !in_use && let Some(digest) = self.digests.remove(&namespace) {
            self.namespaces.remove(&digest);
        }
    }
}
