//! What the core wants done.

use super::Server;
use crate::convert;
use crate::outbox::Ids;
use crate::tally::CloseReason;
use crate::tier::{Done, Job, Place, Tier};
use orbitkv_core::{
    Effect, Event, OperationId, OperationOutcome, Revision, SegmentId, SessionId, SlotRef, Ticket,
};
use orbitkv_wire::ToClient;
use std::sync::Arc;
use std::time::Instant;

/// Header in front of each payload.
const HEADER_BYTES: u64 = 4096;
/// Answers of the tier that are handled before others have their turn; one may tell of some dozen pages.
const DONE_PER_TURN: usize = 64;
/// How often a tier that is waited for is looked at.
const WATCH_MS: u64 = 1_000;

impl Server {
    /// Gives the core one event and carries out what follows. False if the event was refused.
    pub(super) fn feed(&mut self, event: Event<'_>) -> bool {
        // Nested calls find the buffer taken and use a fresh one; they happen only outside `apply`.
        let mut effects = std::mem::take(&mut self.scratch.effects);
        self.core.step(self.clock.now(), event, &mut effects);
        let mut taken = true;
        for effect in effects.drain(..) {
            taken &= !matches!(effect, Effect::Refused { .. });
            self.apply(effect);
        }
        self.scratch.effects = effects;
        taken
    }

    /// Never steps the core: what must follow as an event is queued.
    pub(super) fn apply(&mut self, effect: Effect) {
        match effect {
            #[cfg(feature = "test-hooks")]
            Effect::Operation { session, operation, revision, outcome } => {
                let parked = self.parked.park((session, operation, revision, outcome));
                for (session, operation, revision, outcome) in parked {
                    self.send_operation(session, operation, revision, &outcome);
                }
            }
            #[cfg(not(feature = "test-hooks"))]
            Effect::Operation { session, operation, revision, outcome } => {
                self.send_operation(session, operation, revision, &outcome);
            }
            Effect::Granted { session, operation, revision, grants } => {
                let mut statuses = std::mem::take(&mut self.scratch.statuses);
                let mut parts = std::mem::take(&mut self.scratch.parts);
                let message = convert::granted(&grants, &mut statuses, &mut parts);
                self.send_to(session, ids(operation, revision), &message);
                (self.scratch.statuses, self.scratch.parts) = (statuses, parts);
            }
            Effect::Candidates { session, operation, revision, boundaries } => {
                let boundaries: Vec<_> = boundaries.into_iter().map(Into::into).collect();
                self.send_to(session, ids(operation, revision), &ToClient::Candidates(&boundaries));
            }
            Effect::TierReads { session, operation, revision, pages, left_pages, micros } => {
                let message = ToClient::TierReads { pages, left_pages, micros };
                self.send_to(session, ids(operation, revision), &message);
            }
            Effect::Refused { session, operation, refusal } => {
                let text = refusal.to_string();
                tracing::debug!(session = session.0, ?operation, "refused: {text}");
                let about = operation.map_or_else(Ids::default, |(o, r)| ids(o, r));
                self.send_to(session, about, &ToClient::Refused { text: &text });
            }
            Effect::InstanceState { session, active } => {
                if let Some(known) = self.sessions.get_mut(session.0) {
                    known.active = active;
                }
                self.send_to(session, Ids::default(), &ToClient::InstanceState { active });
            }
            Effect::Fence { session, scheduler } => {
                self.send_to(session, Ids::default(), &ToClient::Fence { scheduler: scheduler.0 });
            }
            Effect::CloseSession { session } => self.doom(session),
            Effect::GrowSegment { segment, slot_bytes, bytes, .. } => {
                if !self.pool.grow(segment.0, slot_bytes, bytes) {
                    self.failed_growths.push(segment.0);
                }
            }
            Effect::ShareSegment { segment, session } => self.share(segment, session),
            Effect::Write { slot, shard } => {
                let job = self.place(slot, shard.payload_bytes).map(|from| Job::Write { slot, shard, from });
                self.submit(job);
            }
            Effect::Read { slot, extent, name, payload_bytes, crc, ticket, urgent } => {
                let place = self.place(slot, payload_bytes);
                let job = place.map(|into| Job::Read { slot, extent, name, crc, ticket, urgent, into });
                self.submit(job);
            }
            Effect::Scrub { slot, payload_bytes, crc } => self.scrub_slot(slot, payload_bytes, crc),
            Effect::Hasten { ticket } => self.tier.iter_mut().for_each(|tier| tier.hasten(ticket)),
            Effect::ForgetNamespace { namespace } => {
                self.tier.iter_mut().for_each(|tier| tier.forget(namespace));
                self.watch_soon();
            }
            Effect::Erase { extent } => self.tier.iter_mut().for_each(|tier| tier.erase(extent)),
            Effect::DropSegment { segment } => self.drop_segment(segment),
        }
    }

    fn drop_segment(&mut self, segment: SegmentId) {
        let tier = self.tier.as_ref();
        for session in self.pool.release(segment.0, |segment| Some(tier?.remove_segment(segment))) {
            self.send_to(SessionId(session), Ids::default(), &ToClient::SegmentGone { segment: segment.0 });
        }
    }

    /// A newer epoch of its client has come.
    fn doom(&mut self, session: SessionId) {
        if let Some(connection) = self.sessions.get(session.0).and_then(|s| s.connection) {
            self.doomed.push_back((connection, CloseReason::Replaced));
        }
    }

    fn send_operation(
        &mut self,
        session: SessionId,
        operation: OperationId,
        revision: Revision,
        outcome: &OperationOutcome,
    ) {
        if matches!(outcome, OperationOutcome::Ready { .. } | OperationOutcome::Recovered { .. }) {
            let (core, ticket) = (&self.core, Ticket { session, operation, revision });
            let live = || core.operations().map(|op| op.ticket).collect();
            self.leases.started(ticket, core.now(), 2 * core.config().operations, live);
        }
        let mut ranges = std::mem::take(&mut self.scratch.ranges);
        let mut parts = std::mem::take(&mut self.scratch.parts);
        let message = convert::outcome(outcome, &mut ranges, &mut parts);
        self.send_to(session, ids(operation, revision), &message);
        (self.scratch.ranges, self.scratch.parts) = (ranges, parts);
    }

    fn share(&mut self, id: SegmentId, session: SessionId) {
        let Some(connection) = self.sessions.get(session.0).and_then(|s| s.connection) else { return };
        let Some(shared) = self.pool.get_mut(id.0) else {
            tracing::error!(segment = id.0, "a segment that is not there was to be shared");
            return;
        };
        shared.sessions.push(session.0);
        let bytes = shared.segment.bytes() as u64;
        let message = ToClient::Segment { segment: id.0, slot_bytes: shared.slot_bytes, bytes };
        let segment = Arc::clone(&shared.segment);
        self.send(connection, Ids::default(), &message, Some(segment));
    }

    /// Where the payload of a slot is.
    pub(super) fn place(&mut self, slot: SlotRef, payload_bytes: u32) -> Option<Place> {
        let shared = self.pool.get_mut(slot.segment.0)?;
        let start = u64::from(slot.index) * shared.slot_bytes + HEADER_BYTES;
        let (offset, bytes) = (usize::try_from(start).ok()?, payload_bytes as usize);
        Some(Place { segment: Arc::clone(&shared.segment), offset, bytes })
    }

    fn submit(&mut self, job: Option<Job>) {
        match (&mut self.tier, job) {
            (Some(tier), Some(job)) => tier.submit(job),
            _ => tracing::error!("work for a tier that is not there"),
        }
        if self.tier.as_ref().is_some_and(Tier::has_answers) {
            // Not from here: the core is in the middle of a step.
            self.waker.wake();
        }
        self.watch_soon();
    }

    fn watch_soon(&mut self) {
        if self.watch_tier_at.is_none() {
            self.watch_tier_at = Some(self.clock.now().plus_ms(WATCH_MS));
        }
    }

    /// Tells the core what the tier has done. At most so much at once: an earlier run may have left a million
    /// pages, and others wait for the core as well.
    pub(super) fn take_done(&mut self) {
        for _ in 0..DONE_PER_TURN {
            let Some(done) = self.tier.as_mut().and_then(Tier::next_done) else { return };
            self.feed_done(&done);
        }
        self.waker.wake();
    }

    fn feed_done(&mut self, done: &Done) {
        let event = match *done {
            Done::Written { slot, extent } => Event::Written { slot, extent },
            Done::Read { slot, good } => Event::ReadDone { slot, good },
            Done::Overdue { slot } => Event::ReadOverdue { slot },
            Done::Forgotten { number, recorded } => return self.reset_recorded(number, recorded),
            Done::Lost { name, extent } => Event::ExtentLost { name, extent },
            Done::Moved { name, from, to } => Event::ExtentMoved { name, from, to },
            Done::FoundAll => Event::FoundAll,
            Done::State { reads, writes } => Event::TierState { reads, writes },
            Done::Found(ref shards) => {
                for shard in shards {
                    self.feed(Event::Found(shard));
                }
                return;
            }
        };
        self.feed(event);
    }

    /// Looks whether the tier moves, while somebody waits for it.
    pub(super) fn watch_tier(&mut self) {
        let now = Instant::now();
        if let Some(tier) = &mut self.tier {
            tier.watch(now);
            self.take_done();
        }
        let busy = self.tier.as_ref().is_some_and(|tier| tier.is_busy(now));
        let watched = busy || self.core.tier_inflight() != (0, 0);
        self.watch_tier_at = watched.then(|| self.clock.now().plus_ms(WATCH_MS));
    }

    /// Tells the core about segments that have grown, or could not.
    pub(super) fn take_grown(&mut self) {
        while let Some((id, result)) = self.pool.next_grown() {
            let segment = SegmentId(id);
            match result {
                Ok(()) => {
                    tracing::debug!(segment = id, "segment ready");
                    if let (Some(tier), Some(shared)) = (&self.tier, self.pool.get_mut(id)) {
                        tier.add_segment(&shared.segment);
                    }
                    self.feed(Event::SegmentReady { segment });
                }
                Err(error) => {
                    self.tally.segments_failed += 1;
                    tracing::warn!(segment = id, "the pool cannot grow: {error}");
                    self.feed(Event::SegmentFailed { segment });
                }
            }
        }
    }

    pub(super) fn report_failed_growths(&mut self) {
        while let Some(id) = self.failed_growths.pop() {
            self.tally.segments_failed += 1;
            self.feed(Event::SegmentFailed { segment: SegmentId(id) });
        }
    }

    /// Sends what was parked at a hold point that is not held any more.
    #[cfg(feature = "test-hooks")]
    pub(super) fn send_parked(&mut self) {
        for (session, operation, revision, outcome) in self.parked.take_released() {
            self.send_operation(session, operation, revision, &outcome);
        }
    }
}

fn ids(operation: OperationId, revision: Revision) -> Ids {
    Ids { operation: operation.0, revision: revision.0 }
}
