//! What the core's answers say, compared with what is known.

use super::Model;
use crate::content::Key;
use crate::failure::{Checked, Checker, ensure, fail};
use orbitkv_core::{
    Core, Effect, Event, MissReason, OperationOutcome, PagePart, Phase, RecoveredRange, SessionId, SlotState,
    Ticket,
};

impl Model {
    /// Takes the effects of an accepted or refused event, in order.
    pub(super) fn effects(&mut self, event: &Event<'_>, effects: &[Effect], core: &Core) -> Checked {
        if matches!(event, Event::DropUnleased) {
            self.drop_unleased(core)?;
        }
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
                Effect::Candidates { session, boundaries, .. } => match event {
                    Event::Candidates { start_tokens, hashes, .. } => {
                        self.check_candidates(*session, (*start_tokens, hashes), boundaries, core)?;
                    }
                    other => return fail(Checker::Model, format!("{other:?} was answered with candidates")),
                },
                Effect::CloseSession { session } => self.replaced(*session, event)?,
                Effect::Write { slot, shard } => self.write_begins(*slot, shard.name.shard, shard.crc)?,
                Effect::Read { slot, extent, crc, .. } => self.read_begins(*slot, *extent, *crc)?,
                Effect::Scrub { slot, crc, .. } => self.scrub_begins(*slot, *crc)?,
                Effect::TierReads { session, operation, revision, pages, left_pages, .. } => {
                    let ticket = Ticket { session: *session, operation: *operation, revision: *revision };
                    let asked = self.operations.get(&ticket).map_or(0, |op| op.wanted.len());
                    let told = u64::from(*pages) + u64::from(*left_pages);
                    ensure(told > 0 && told <= asked as u64, Checker::Model, || {
                        format!("{ticket:?} asked for {asked} pages and was told of {told}")
                    })?;
                }
                Effect::Refused { .. }
                | Effect::Hasten { .. }
                | Effect::Erase { .. }
                | Effect::ForgetNamespace { .. }
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
            OperationOutcome::Ready { pages, shards, parts } => {
                let fits = op.recovery.is_none() && op.shapes.iter().all(|shape| shape.0 == *shards);
                ensure(fits, Checker::Model, || format!("{ticket:?} was answered as another query"))?;
                self.answered(ticket, *pages as usize, parts, core)
            }
            OperationOutcome::Recovered { ranges, parts } => {
                let firsts = ranges.iter().map(|range| (range.group, range.first_page)).collect();
                let named = |range: &RecoveredRange| {
                    std::iter::repeat_n((range.group, range.shards), range.pages as usize)
                };
                let pages: Vec<_> = ranges.iter().flat_map(named).collect();
                let want: Vec<_> = op.wanted.iter().zip(&op.shapes).map(|(w, s)| (w.0, s.0)).collect();
                ensure(op.recovery == Some(firsts) && pages == want, Checker::Model, || {
                    format!("{ticket:?} recovered {ranges:?}, not all of {:?}", op.recovery)
                })?;
                self.answered(ticket, pages.len(), parts, core)
            }
        }
    }

    /// Pages were handed out, for the first time or once more.
    fn answered(&mut self, ticket: Ticket, pages: usize, parts: &[PagePart], core: &Core) -> Checked {
        let Some(op) = self.operations.get(&ticket) else {
            return Ok(());
        };
        match op.phase {
            Phase::Waiting | Phase::Preparing | Phase::Prepared => self.leased(ticket, pages, parts, core),
            _ => ensure(op.parts == parts, Checker::Model, || {
                format!("{ticket:?} was answered with other pages than before")
            }),
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
        ensure(leased && pages > 0 && pages as usize <= op.wanted.len(), Checker::Model, || {
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
            let enough = if op.rule.0 { op.wanted.len() } else { 1 };
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

    /// Pages of the wanted prefix that are committed and still in memory, or, for those who take them, in the
    /// slower tier.
    pub(super) fn expected(&self, ticket: Ticket, core: &Core) -> usize {
        let memory_only = self.operations.get(&ticket).is_some_and(|op| op.rule.2);
        self.prefix(ticket, |key| match memory_only {
            true => self.resident(key, core),
            false => self.is_here(key, core),
        })
    }

    /// Whether a page is committed and still in memory, or in the slower tier.
    pub(super) fn is_here(&self, key: &Key, core: &Core) -> bool {
        self.tier.has(key) || self.resident(key, core)
    }

    fn prefix(&self, ticket: Ticket, here: impl Fn(&Key) -> bool) -> usize {
        let Some(op) = self.operations.get(&ticket) else {
            return 0;
        };
        let keys = op.wanted.iter().map(|(group, hash)| self.key(ticket.session, *group, *hash));
        keys.take_while(|key| key.is_some_and(|key| here(&key))).count()
    }

    /// Whether a page is committed and still in memory.
    fn resident(&self, key: &Key, core: &Core) -> bool {
        let whole = |part: &PagePart| {
            let seen = core.slot(part.slot);
            seen.is_some_and(|s| s.state == SlotState::Resident && !s.spare && !s.condemned)
        };
        self.complete.get(key).into_iter().flatten().any(|parts| parts.iter().all(whole))
    }

    /// A first answer with pages: each must be committed in full, under that name, and not forgotten.
    fn leased(&mut self, ticket: Ticket, count: usize, parts: &[PagePart], core: &Core) -> Checked {
        let expected = self.expected(ticket, core);
        let Some(op) = self.operations.get(&ticket) else {
            return Ok(());
        };
        let widths = op.shapes.iter().take(count).map(|(shards, _)| usize::from(*shards));
        let fits = count > 0 && count <= op.wanted.len() && widths.clone().sum::<usize>() == parts.len();
        ensure(fits, Checker::Model, || format!("{ticket:?} got {count} pages in {} parts", parts.len()))?;
        let mut rest = parts;
        for ((group, hash), width) in op.wanted.iter().zip(widths) {
            let (of_page, behind) = rest.split_at(width);
            rest = behind;
            let commits = self.key(ticket.session, *group, *hash).and_then(|key| self.complete.get(&key));
            let known = commits.is_some_and(|commits| commits.iter().any(|parts| parts == of_page));
            ensure(known, Checker::Bytes, || {
                format!(
                    "{ticket:?} was given {hash:?} in {of_page:?}, which was never committed or is forgotten"
                )
            })?;
        }
        let own = self.config.query_instance_budget_bytes.min(self.config.query_budget_bytes);
        let bypassed = op.bytes_of(expected) > own;
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
            op.bytes = op.bytes_of(count) + op.lingering_bytes;
            op.leased = u32::try_from(count).unwrap_or(u32::MAX);
            op.parts = parts.to_vec();
        }
        Ok(())
    }
}

/// Whether a final answer is still to come.
fn waits(phase: Phase) -> bool {
    matches!(phase, Phase::Waiting | Phase::Preparing | Phase::Preloading | Phase::Warming)
}
