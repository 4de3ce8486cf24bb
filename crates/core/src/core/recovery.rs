//! Demands for a token boundary, for which every cache group must have its part.

use super::Core;
use crate::operation::{Ask, digest};
use crate::wanted::Wanted;
use crate::{BlockHash, Effect, GroupId, Mark, PageKey, Plant, Recovery, Refusal, Ticket};
use orbitkv_contract::{Contract, GroupRange};

impl Core {
    /// A strict demand for the ranges of a boundary, revalidated: what the owner believes it may recover was
    /// true when it asked for candidates, and need not be any more.
    pub(super) fn recover(
        &mut self,
        ticket: Ticket,
        recovery: &Recovery<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let session = self.session(ticket.session)?;
        self.check_owner(session, GroupId(0), "recover")?;
        self.check_count(recovery.hashes.len())?;
        let wanted = self.required(ticket, recovery).inspect_err(|_| {
            self.mark(Mark::RecoveryRefused);
        })?;
        self.mark(Mark::RecoveryAsked);
        let Recovery { deadline_ms, mode, .. } = *recovery;
        let asked = (wanted.group(), wanted.len());
        let (strict, wait_full_prefix) = (!self.planted(Plant::RecoverPartly), false);
        let ask = Ask {
            asked,
            digest: wanted_digest(&wanted),
            deadline_ms,
            mode,
            strict,
            wait_full_prefix,
            memory_only: false,
        };
        self.ask(ticket, &ask, || wanted, effects)
    }

    /// The pages that the contract takes for that boundary, in restore order.
    fn required(&self, ticket: Ticket, recovery: &Recovery<'_>) -> Result<Wanted, Refusal> {
        let instance = self.session(ticket.session)?.instance;
        let instance = self.instances.get(&instance).ok_or(Refusal::UnknownSession)?;
        let (contract, hashes) = (&instance.contract, recovery.hashes);
        let (start_tokens, end_tokens) = (recovery.start_tokens, recovery.end_tokens);
        let ranges = contract.required_ranges(start_tokens, end_tokens, hashes.len())?;
        if !recovery.ranges.is_empty() {
            Contract::check_ranges(&ranges, recovery.ranges)?;
        }
        let pages = ranges.iter().map(|range| range.pages() as usize).sum();
        self.check_count(pages)?;
        let mut wanted = Wanted { recovery: true, ..Wanted::default() };
        wanted.hashes.reserve_exact(pages);
        for (rule, range) in contract.groups().iter().zip(ranges) {
            let GroupRange { group, first_page, end_page } = range;
            let group = GroupId(group);
            let shape = instance.shape(group).ok_or(Refusal::UnknownGroup(group.0))?;
            let hash = |page| hashes.get(contract.hash_index(rule.page_tokens, page)).copied();
            wanted.push(group, shape, first_page, (first_page..end_page).filter_map(hash));
        }
        let max = self.config.parts_per_answer;
        if wanted.parts() > max {
            return Err(Refusal::Limit { what: "parts of one answer", max });
        }
        Ok(wanted)
    }

    /// Where a recovery could end now. A look: nothing is read, leased, reserved or remembered.
    pub(super) fn candidates(
        &mut self,
        ticket: Ticket,
        start_tokens: u32,
        hashes: &[BlockHash],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let session = self.session(ticket.session)?;
        self.check_owner(session, GroupId(0), "ask for candidates")?;
        self.check_count(hashes.len())?;
        let Some(instance) = self.instances.get(&session.instance) else {
            return Err(Refusal::UnknownSession);
        };
        let (contract, namespace) = (&instance.contract, instance.namespace);
        let mut boundaries = contract.restorable_boundaries(start_tokens, hashes.len(), |group, page| {
            let hash = hashes.get(contract.hash_index(group.page_tokens, page));
            let key = |&hash| PageKey { namespace, group: GroupId(group.group), hash };
            hash.map(key).is_some_and(|key| self.obtainable(&key))
        })?;
        if !instance.active {
            boundaries.clear();
        }
        self.mark(if boundaries.is_empty() { Mark::NoCandidates } else { Mark::CandidatesFound });
        let Ticket { session, operation, revision } = ticket;
        effects.push(Effect::Candidates { session, operation, revision, boundaries });
        Ok(())
    }
}

/// Digest of a recovery: over every group's range and hashes, so that a claim must match all of them. It is
/// that of no prefix: the rules of a prefix begin at 2.
fn wanted_digest(wanted: &Wanted) -> u64 {
    const RECOVERY: u64 = 1;
    wanted.each_span().fold(RECOVERY, |lead, (span, pages)| {
        digest(span.group, lead ^ u64::from(span.first_page) << 8, &wanted.hashes[pages])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Demand;
    use crate::instance::Shape;

    #[test]
    fn no_prefix_query_has_the_digest_of_a_recovery() {
        let (group, hashes) = (GroupId(0), [BlockHash([3; 32]), BlockHash([4; 32])]);
        let shape = Shape { slot_bytes: 8192, payload_bytes: 4096, shards: 1 };
        let recovery = wanted_digest(&Wanted::prefix(group, shape, &hashes));
        for flags in 0..8 {
            let set = |flag| flags & flag != 0;
            let (strict, wait_full_prefix, memory_only) = (set(1), set(2), set(4));
            let demand = Demand { strict, wait_full_prefix, memory_only, ..Demand::prefix(group, &hashes) };
            assert_ne!(Ask::from(&demand).digest, recovery, "{demand:?}");
        }
    }
}
