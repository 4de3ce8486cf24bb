//! The plan of an admitted demand: which pages it leases, what it reads in batches, when it is answered.

use super::Core;
use super::eviction::Room;
use crate::ledger::Side;
use crate::loading::{Loading, Planned};
use crate::page::PageState;
use crate::slab::PageId;
use crate::slots::Class;
use crate::{
    Effect, GroupId, Mark, MissReason, OperationOutcome, PageKey, Phase, Plant, ShardId, Ticket, Trigger,
};

/// What the slower tier had to do with an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierReads {
    /// Its pages that were read for it.
    pub(super) pages: usize,
    /// Pages behind it that could have been had.
    pub(super) left_pages: usize,
    /// How long it read.
    pub(super) micros: u64,
}

/// What became of the next page of a plan.
enum Step {
    /// Leased, and here.
    Resident,
    /// Leased, and being read for this demand or another.
    Reading { bytes: u64 },
    /// Its memory is on its way.
    Starved,
    /// It cannot be had: the plan ends here.
    End,
}

impl Core {
    /// A demand was admitted: leases what is in DRAM and begins to read the rest.
    pub(super) fn begin_loading(&mut self, ticket: Ticket, len: usize, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        let keys: Vec<PageKey> = op.wanted.keys(op.namespace).take(len).collect();
        let mut plan = vec![Planned::Stored; len];
        // The head last: it is the one used last.
        for (planned, key) in plan.iter_mut().zip(&keys).rev() {
            if let Some(page) = self.index.sealed(key) {
                self.take_lease(page);
                *planned = Planned::Leased { page, read: false };
            }
        }
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.loading = Some(Box::new(Loading { plan, since: self.now, ..Loading::default() }));
        }
        self.advance(ticket, effects);
    }

    /// Answers if the plan is complete, or submits the next batch if the last one has ended.
    pub(super) fn advance(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        loop {
            let Some(op) = self.operations.get_mut(&ticket) else {
                return;
            };
            let (phase, patient) = (op.phase, op.wait_full_prefix || op.phase.speculative());
            let limit = if patient { 0 } else { self.config.read_batches };
            let Some(loading) = op.loading.as_mut() else {
                return;
            };
            if loading.pending > 0 {
                return;
            }
            while matches!(loading.plan.get(loading.next), Some(Planned::Leased { .. } | Planned::Passed)) {
                loading.next += 1;
            }
            let complete = loading.next == loading.plan.len();
            let enough = limit > 0 && loading.batches >= limit;
            let reason = if loading.refused { MissReason::Budget } else { MissReason::Absent };
            if complete && phase == Phase::Warming {
                return self.end_warm_up(ticket, effects);
            }
            if complete || enough {
                if !complete {
                    self.mark(Mark::BatchLimit);
                }
                return self.answer(ticket, reason, effects);
            }
            if phase == Phase::Warming && self.demands_own_bytes() {
                self.mark(Mark::SpeculationYields);
                return self.end_warm_up(ticket, effects);
            }
            if !self.submit_batch(ticket, effects) {
                return;
            }
        }
    }

    /// Submits reads until a batch is full or the plan ends. Returns whether to look again at once.
    fn submit_batch(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) -> bool {
        let mut batch_bytes = 0;
        loop {
            let Some(op) = self.operations.get(&ticket) else {
                return false;
            };
            let Some(loading) = &op.loading else {
                return false;
            };
            let (at, end) = (loading.next, loading.plan.len());
            let most_bytes = match op.phase.speculative() {
                true => self.config.prepared_batch_bytes,
                false => self.config.read_batch_bytes,
            };
            // At most so many bytes, or one page.
            let full =
                most_bytes > 0 && batch_bytes > 0 && batch_bytes + op.wanted.page_bytes(at) > most_bytes;
            if at >= end || full {
                return true;
            }
            if !matches!(loading.plan[at], Planned::Stored) {
                self.place(ticket, at, None);
                continue;
            }
            let Some(key) = op.wanted.key(op.namespace, at) else {
                return false;
            };
            match self.read_page(ticket, at, key, effects) {
                Step::Resident => {}
                Step::Reading { bytes } => {
                    if batch_bytes == 0 {
                        self.count_batch(ticket);
                    }
                    batch_bytes += bytes;
                }
                Step::Starved => {
                    self.mark(Mark::ReadStarved);
                    self.starved.insert(ticket);
                    // What was submitted is waited for first; then this is tried again.
                    return false;
                }
                Step::End => {
                    self.cut(ticket, at);
                    return true;
                }
            }
        }
    }

    fn refuse(&mut self, ticket: Ticket) {
        if let Some(loading) = self.operations.get_mut(&ticket).and_then(|op| op.loading.as_mut()) {
            loading.refused = true;
        }
    }

    fn count_batch(&mut self, ticket: Ticket) {
        let Some(loading) = self.operations.get_mut(&ticket).and_then(|op| op.loading.as_mut()) else {
            return;
        };
        loading.batches += 1;
        if loading.batches > 1 {
            self.mark(Mark::NextBatch);
        }
    }

    /// Notes what was leased for a place of the plan, and goes past it.
    pub(super) fn place(&mut self, ticket: Ticket, at: usize, leased: Option<(PageId, bool)>) {
        let Some(loading) = self.operations.get_mut(&ticket).and_then(|op| op.loading.as_mut()) else {
            return;
        };
        loading.next = at + 1;
        if let Some((page, read)) = leased {
            loading.plan[at] = Planned::Leased { page, read };
            loading.pending += usize::from(read);
        }
    }

    fn read_page(&mut self, ticket: Ticket, at: usize, key: PageKey, effects: &mut Vec<Effect>) -> Step {
        if let Some(page) = self.index.sealed(&key) {
            self.place_resident(ticket, at, page);
            return Step::Resident;
        }
        let Some(shape) = self.operations.get(&ticket).and_then(|op| self.shape_for(op, key.group)) else {
            return Step::End;
        };
        let bytes = shape.page_bytes();
        if let Some(&page) = self.index.reading.get(&key) {
            if !self.is_awaited(page) {
                return Step::End;
            }
            self.mark(Mark::ReadShared);
            self.counters.coalesced_reads += 1;
            self.join_read(ticket, at, page);
            self.hasten(ticket, page, effects);
            return Step::Reading { bytes };
        }
        let Some(stored) = self.stored.get(&key).filter(|_| self.tier_reads).cloned() else {
            return Step::End;
        };
        for shard in 0..shape.shards {
            let class =
                Class { namespace: key.namespace, shard: ShardId(shard), slot_bytes: shape.slot_bytes };
            match self.make_room(class, effects) {
                Room::Now => {}
                Room::Soon => return Step::Starved,
                Room::No => {
                    self.mark(Mark::ReadRefused);
                    self.refuse(ticket);
                    return Step::End;
                }
            }
        }
        match self.begin_read(ticket, key, shape, &stored, effects) {
            Some(page) => {
                self.join_read(ticket, at, page);
                Step::Reading { bytes }
            }
            None => Step::End,
        }
    }

    /// A read that a demand waited for has ended.
    pub(super) fn page_ended(&mut self, ticket: Ticket, id: PageId, bad: bool, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let warms = op.phase == Phase::Warming;
        let Some(loading) = op.loading.as_mut() else {
            return;
        };
        loading.pending -= 1;
        let place = |loading: &Loading| loading.plan.iter().position(|planned| planned.page() == Some(id));
        match (bad || warms).then(|| place(loading)).flatten() {
            Some(at) if bad => self.cut(ticket, at),
            Some(at) => self.warmed(ticket, at),
            None => {}
        }
        self.advance(ticket, effects);
    }

    /// A demand goes on without a page that is still being read, and without what comes after it.
    pub(super) fn stop_waiting_for(&mut self, ticket: Ticket, id: PageId, effects: &mut Vec<Effect>) {
        let loading = self.operations.get(&ticket).and_then(|op| op.loading.as_ref());
        let at = loading.and_then(|l| l.plan.iter().position(|planned| planned.page() == Some(id)));
        if let Some(at) = at {
            self.cut(ticket, at);
            self.advance(ticket, effects);
        }
    }

    /// The plan ends before that place.
    fn cut(&mut self, ticket: Ticket, at: usize) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let Some(loading) = op.loading.as_mut().filter(|loading| at < loading.plan.len()) else {
            return;
        };
        let rest = loading.plan.split_off(at);
        loading.next = loading.next.min(at);
        self.give_back(ticket, at, &rest);
    }

    /// Ends interest in the pages of a plan from `at` on: bytes of those being read stay charged until they
    /// have landed.
    fn give_back(&mut self, ticket: Ticket, at: usize, rest: &[Planned]) {
        let (mut lingering, mut lingering_bytes, mut gone) = (0, 0, 0);
        for (place, planned) in rest.iter().enumerate().rev() {
            let bytes = self.operations.get(&ticket).map_or(0, |op| op.wanted.page_bytes(at + place));
            gone += if *planned == Planned::Passed { 0 } else { bytes };
            let Some(page) = planned.page() else {
                continue;
            };
            if let Some(reading) = self.reads.get_mut(&page) {
                reading.waiters.retain(|waiter| *waiter != ticket);
                reading.lingerers.push((ticket, bytes));
                lingering += 1;
                lingering_bytes += bytes;
            }
            self.drop_lease(page);
        }
        if self.planted(Plant::FreeReadingBytes) {
            (lingering, lingering_bytes) = (0, 0);
        }
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        if let Some(loading) = &mut op.loading {
            loading.pending = loading.pending.saturating_sub(lingering as usize);
        }
        op.lingering += lingering;
        op.lingering_bytes += lingering_bytes;
        let instance = op.instance;
        if let Some((account, bytes)) = op.charge {
            op.charge = (bytes > gone).then_some((account, bytes - gone));
            let free = gone - lingering_bytes;
            self.ledger.transfer(Side::Held(instance, account), Side::Free, free);
            self.wake |= free > 0;
        }
    }

    /// The final answer of a demand that prepares: the longest prefix that is here, leased.
    pub(super) fn answer(&mut self, ticket: Ticket, reason: MissReason, effects: &mut Vec<Effect>) {
        let Some(loading) = self.operations.get(&ticket).and_then(|op| op.loading.as_ref()) else {
            return;
        };
        let planned = loading.plan.len();
        let mut handed = loading.plan.iter().take_while(|planned| self.loaded(**planned)).count();
        if self.operations.get(&ticket).is_some_and(|op| op.strict && handed < op.wanted.len()) {
            self.mark(Mark::StrictMiss);
            handed = 0;
        }
        self.cut(ticket, handed);
        self.starved.remove(&ticket);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let loading = op.loading.take().unwrap_or_default();
        let (plan, since) = (loading.plan, loading.since);
        let asked = op.asked();
        let ahead = op.phase.speculative();
        let read =
            plan.iter().filter(|planned| matches!(planned, Planned::Leased { read: true, .. })).count();
        let micros = self.now.0.saturating_sub(since.0);
        self.push_tier_reads(
            ticket,
            TierReads { pages: read, left_pages: planned - handed, micros },
            effects,
        );
        if handed == 0 {
            self.end_preparing(ticket);
            return match ahead {
                true => self.push_outcome(ticket, OperationOutcome::Miss(reason), effects),
                false => self.push_miss(ticket, asked, reason, effects),
            };
        }
        let pages = plan.into_iter().filter_map(Planned::page).collect();
        match ahead {
            true => self.hold_prepared(ticket, pages, read, effects),
            false => self.hand_over(ticket, pages, read, effects),
        }
    }

    /// Tells what was read for a query, before its final answer. Self-tests are of no interest.
    pub(super) fn push_tier_reads(&self, ticket: Ticket, reads: TierReads, effects: &mut Vec<Effect>) {
        let TierReads { pages, left_pages, micros } = reads;
        let probes = self.operations.get(&ticket).is_none_or(|op| op.wanted.group() == GroupId::PROBE);
        if probes || (pages == 0 && left_pages == 0) {
            return;
        }
        let Ticket { session, operation, revision } = ticket;
        let [pages, left_pages] = [pages, left_pages].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        effects.push(Effect::TierReads { session, operation, revision, pages, left_pages, micros });
    }

    /// Whether a page of a plan may be handed out.
    fn loaded(&self, planned: Planned) -> bool {
        let page = planned.page().and_then(|id| self.index.pages.get(id));
        page.is_some_and(|page| match page.state {
            PageState::Sealed | PageState::Spare => true,
            PageState::Reading => self.planted(Plant::HandOffUnread),
            PageState::Filling | PageState::Condemned => false,
        })
    }

    /// Interest in a demand that prepares has ended, or nothing came of it.
    pub(super) fn end_preparing(&mut self, ticket: Ticket) {
        self.cut(ticket, 0);
        self.starved.remove(&ticket);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        op.loading = None;
        let over = op.lingering == 0;
        op.phase = op.phase.after(Trigger::Stop).unwrap_or(Phase::Draining);
        self.stop_timer(ticket);
        if over {
            self.finish(ticket);
        } else {
            self.mark(Mark::StoppedWhileReading);
        }
    }

    /// Memory may have come free: demands that wait for it try again.
    pub(super) fn retry_starved(&mut self, effects: &mut Vec<Effect>) {
        for ticket in std::mem::take(&mut self.starved) {
            self.advance(ticket, effects);
        }
    }
}
