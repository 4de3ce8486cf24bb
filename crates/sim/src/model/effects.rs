//! What the core's answers say, compared with what is known.

use super::Model;
use crate::content::Key;
use crate::failure::{Checked, Checker, ensure, fail};
use orbitkv_core::{
    Core, Effect, Event, MissReason, OperationOutcome, PagePart, Phase, SessionId, SlotState, Ticket,
};

impl Model {
    /// Takes the effects of an accepted or refused event, in order.
    pub(super) fn effects(&mut self, event: &Event<'_>, effects: &[Effect], core: &Core) -> Checked {
        for effect in effects {
            match effect {
                Effect::Operation { session, operation, revision, outcome } => {
                    let ticket = Ticket { session: *session, operation: *operation, revision: *revision };
                    self.outcome(ticket, outcome, core)?;
                }
                Effect::Granted { session, operation, revision, grants } => {
                    let ticket = Ticket { session: *session, operation: *operation, revision: *revision };
                    match event {
                        Event::Reserve { request, .. } => self.granted(ticket, request, grants)?,
                        other => return fail(Checker::Model, format!("{other:?} was answered with grants")),
                    }
                }
                Effect::CloseSession { session } => self.replaced(*session, event)?,
                Effect::Write { slot, shard, crc, .. } => self.write_begins(*slot, *shard, *crc)?,
                Effect::Read { slot, extent, crc, .. } => self.read_begins(*slot, *extent, *crc)?,
                Effect::Refused { .. }
                | Effect::Erase { .. }
                | Effect::InstanceState { .. }
                | Effect::Fence { .. }
                | Effect::GrowSegment { .. }
                | Effect::ShareSegment { .. }
                | Effect::DropSegment { .. } => {}
            }
        }
        Ok(())
    }

    /// Only a newer epoch of the same client may close a session.
    fn replaced(&mut self, older: SessionId, event: &Event<'_>) -> Checked {
        let by = match event {
            Event::SessionOpened { client, session, .. } if *session > older => Some(*client),
            _ => None,
        };
        let of = self.sessions.get(&older).map(|s| s.client);
        ensure(by.is_some() && by == of, Checker::Model, || format!("{older:?} was closed by a stranger"))?;
        self.closed(older);
        Ok(())
    }

    fn outcome(&mut self, ticket: Ticket, outcome: &OperationOutcome, core: &Core) -> Checked {
        let Some(op) = self.operations.get(&ticket) else {
            return fail(Checker::Model, format!("{ticket:?} is over and was answered with {outcome:?}"));
        };
        match outcome {
            OperationOutcome::Waiting => ensure(waits(op.phase), Checker::Model, || {
                format!("{ticket:?} is {:?} and was told to wait", op.phase)
            }),
            OperationOutcome::Prepared { pages } => self.prepared(ticket, *pages, core),
            OperationOutcome::Warmed { .. } => {
                let warms = op.phase == Phase::Warming;
                self.stop(ticket);
                ensure(warms, Checker::Model, || format!("{ticket:?} did not warm up anything"))
            }
            OperationOutcome::Miss(reason) => self.missed(ticket, *reason, core),
            OperationOutcome::Ready { pages, shards, parts } => match op.phase {
                Phase::Waiting | Phase::Preparing | Phase::Prepared => {
                    self.leased(ticket, (*pages, *shards), parts, core)
                }
                _ => ensure(op.parts == *parts, Checker::Model, || {
                    format!("{ticket:?} was answered with other pages than before")
                }),
            },
        }
    }

    /// A preparation is complete: its pages are leased.
    fn prepared(&mut self, ticket: Ticket, pages: u32, core: &Core) -> Checked {
        let view = core.operations().find(|view| view.ticket == ticket);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return Ok(());
        };
        let fits = matches!(op.phase, Phase::Preloading | Phase::Prepared) && op.unclaimed;
        ensure(fits, Checker::Model, || format!("{ticket:?} is {:?} and was told it is prepared", op.phase))?;
        op.phase = Phase::Prepared;
        let leased = view.is_none_or(|view| view.pages == pages as usize);
        ensure(leased && pages > 0 && pages as usize <= op.hashes.len(), Checker::Model, || {
            format!("{ticket:?} was told of {pages} pages, the core has {view:?}")
        })
    }

    fn missed(&mut self, ticket: Ticket, reason: MissReason, core: &Core) -> Checked {
        let Some(op) = self.operations.get(&ticket) else {
            return Ok(());
        };
        let fits = match reason {
            MissReason::Expired => op.phase == Phase::Ready || op.phase.speculative(),
            _ if op.phase.speculative() => true,
            _ => waits(op.phase),
        };
        let prepared = op.phase != Phase::Waiting;
        let ready = op.phase == Phase::Ready;
        ensure(fits, Checker::Model, || {
            format!("{ticket:?} is {:?} and became a miss: {reason:?}", op.phase)
        })?;
        // What a read brought or lost in between is not known here.
        if reason == MissReason::Absent && !prepared {
            let enough = if op.rule.0 { op.hashes.len() } else { 1 };
            ensure(self.expected(ticket, core) < enough, Checker::Model, || {
                format!("{ticket:?} missed a page that is there")
            })?;
        }
        // An expired lease is asked for; it stands until it is given back.
        if reason != MissReason::Expired || !ready {
            self.stop(ticket);
        }
        Ok(())
    }

    /// Pages of the wanted prefix that are committed and still in memory, or in the slower tier.
    pub(super) fn expected(&self, ticket: Ticket, core: &Core) -> usize {
        self.prefix(ticket, |key| self.tier.has(key) || self.resident(key, core))
    }

    fn prefix(&self, ticket: Ticket, here: impl Fn(&Key) -> bool) -> usize {
        let Some(op) = self.operations.get(&ticket) else {
            return 0;
        };
        let keys = op.hashes.iter().map(|hash| self.key(ticket.session, op.group, *hash));
        keys.take_while(|key| key.is_some_and(|key| here(&key))).count()
    }

    /// Whether a page is committed and still in memory.
    fn resident(&self, key: &Key, core: &Core) -> bool {
        let whole = |part: &PagePart| {
            core.slot(part.slot).is_some_and(|s| s.state == SlotState::Resident && !s.spare)
        };
        self.complete.get(key).into_iter().flatten().any(|parts| parts.iter().all(whole))
    }

    /// A first answer with pages: each must be committed in full, under that name, and not forgotten.
    fn leased(
        &mut self,
        ticket: Ticket,
        (pages, shards): (u32, u16),
        parts: &[PagePart],
        core: &Core,
    ) -> Checked {
        let expected = self.expected(ticket, core);
        let (want_shards, slot_bytes) = self.shape(ticket.session, self.group_of(ticket));
        let Some(op) = self.operations.get(&ticket) else {
            return Ok(());
        };
        let (count, width) = (pages as usize, usize::from(shards));
        let fits = shards == want_shards && parts.len() == count * width && count > 0;
        ensure(fits, Checker::Model, || format!("{ticket:?} got {pages} pages in {} parts", parts.len()))?;
        for (hash, of_page) in op.hashes.iter().zip(parts.chunks(width)) {
            let commits = self.key(ticket.session, op.group, *hash).and_then(|key| self.complete.get(&key));
            let known = commits.is_some_and(|commits| commits.iter().any(|parts| parts == of_page));
            ensure(known, Checker::Bytes, || {
                format!(
                    "{ticket:?} was given {hash:?} in {of_page:?}, which was never committed or is forgotten"
                )
            })?;
        }
        let page_bytes = slot_bytes * u64::from(shards);
        let own = self.config.query_instance_budget_bytes.min(self.config.query_budget_bytes);
        let bypassed = page_bytes * expected as u64 > own;
        // What came of reads is not known here. An answer at once has at least what was in memory: there
        // may be no memory to read the rest.
        let prepared = op.phase != Phase::Waiting;
        let least = self.prefix(ticket, |key| self.resident(key, core));
        let fits = (count >= least || bypassed) && count <= expected;
        ensure(fits || prepared, Checker::Model, || {
            format!("{ticket:?} got {count} pages of {expected} that are there, {least} of them in memory")
        })?;
        if !prepared {
            self.check_overtaking(ticket, core)?;
        }
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.phase = Phase::Ready;
            op.bytes = page_bytes * u64::from(pages) + op.lingering_bytes;
            op.parts = parts.to_vec();
        }
        Ok(())
    }

    fn group_of(&self, ticket: Ticket) -> orbitkv_core::GroupId {
        self.operations.get(&ticket).map_or(orbitkv_core::GroupId::PROBE, |op| op.group)
    }
}

/// Whether a final answer is still to come.
fn waits(phase: Phase) -> bool {
    matches!(phase, Phase::Waiting | Phase::Preparing | Phase::Preloading | Phase::Warming)
}
