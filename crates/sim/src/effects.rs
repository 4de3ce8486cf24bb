//! What the core wants done, and the next time it wants to be woken.

use crate::content::STRIPES;
use crate::failure::{Checked, Checker, ensure};
use crate::heap::Happening;
use crate::translate;
use crate::world::World;
use orbitkv_core::{Effect, Event, Micros, SessionId};
use orbitkv_wire::ToClient;

impl World {
    /// One step of the core, compared with the model and audited.
    pub(crate) fn checked_step(&mut self, event: Event<'_>) -> Result<Vec<Effect>, crate::failure::Failure> {
        self.note(|| format!("  core: {event:?}"));
        let mut effects = Vec::new();
        self.core.step(Micros(self.now_us), event, &mut effects);
        for effect in &effects {
            self.note(|| format!("    -> {effect:?}"));
        }
        self.steps += 1;
        self.check_step(&event, &effects)?;
        if let Some(at) = self.core.next_deadline()
            && self.timer_us.is_none_or(|t| t > at.0)
        {
            // Timers come late, never early.
            let late = if self.quiet() { 0 } else { self.rng.below(2_000) };
            self.timer_us = Some(at.0);
            self.heap.push(at.0.saturating_add(late), Happening::Timer);
        }
        Ok(effects)
    }

    /// Carries effects out in order. None of them steps the core.
    pub(crate) fn carry_out(&mut self, effects: Vec<Effect>) -> Checked {
        effects.into_iter().try_for_each(|effect| self.apply(effect))
    }

    fn apply(&mut self, effect: Effect) -> Checked {
        match effect {
            Effect::Operation { .. }
            | Effect::Granted { .. }
            | Effect::Candidates { .. }
            | Effect::TierReads { .. }
            | Effect::Refused { .. }
            | Effect::InstanceState { .. }
            | Effect::Fence { .. } => self.reply(effect),
            Effect::CloseSession { session } => {
                // The core has closed it; the connection follows.
                let link = self.sessions.get_mut(&session.0).and_then(|s| s.link.take());
                if let Some(link) = link {
                    self.close_by_manager(link);
                }
                Ok(())
            }
            Effect::GrowSegment { segment, slot_bytes, bytes, .. } => {
                let works = !self.rng.chance(self.plan.faults.growth);
                if works {
                    let slots = usize::try_from(bytes / slot_bytes).unwrap_or(0);
                    self.memory.map(segment.0, slots);
                }
                let at = self.now_us + self.rng.range(1, self.plan.grow_us);
                self.heap.push(at, Happening::Grown { segment: segment.0, works });
                Ok(())
            }
            Effect::ShareSegment { segment, session } => {
                let message = ToClient::Segment { segment: segment.0, slot_bytes: 0, bytes: STRIPES as u64 };
                self.send_to(session, (0, 0), &message)
            }
            Effect::Write { slot, shard } => {
                self.begin_write(slot, shard.name, shard.crc);
                Ok(())
            }
            Effect::Read { slot, extent, name, crc, .. } => {
                self.begin_read(slot, name, extent, crc);
                Ok(())
            }
            Effect::Scrub { slot, crc, .. } => {
                self.begin_scrub(slot, crc);
                Ok(())
            }
            // Here a read takes as long as chance says.
            // Of a forgotten namespace the core has all that is found erased, and refuses the rest.
            Effect::Hasten { .. } | Effect::ForgetNamespace { .. } => Ok(()),
            Effect::Erase { extent } => {
                self.disk.erase(extent);
                Ok(())
            }
            Effect::DropSegment { segment } => {
                self.memory.unmap(segment.0);
                let used = self.core.slots().any(|s| s.slot.segment == segment);
                ensure(!used, Checker::Custody, || format!("{segment:?} is dropped with slots in use"))
            }
        }
    }

    /// Answers and news for clients.
    fn reply(&mut self, effect: Effect) -> Checked {
        match effect {
            Effect::Operation { session, operation, revision, outcome } => {
                let (mut ranges, mut parts) = (Vec::new(), Vec::new());
                let message = translate::outcome(&outcome, &mut ranges, &mut parts);
                self.send_to(session, (operation.0, revision.0), &message)
            }
            Effect::Granted { session, operation, revision, grants } => {
                let (mut statuses, mut parts) = (Vec::new(), Vec::new());
                let message = translate::granted(&grants, &mut statuses, &mut parts);
                self.send_to(session, (operation.0, revision.0), &message)
            }
            Effect::Candidates { session, operation, revision, boundaries } => {
                let boundaries: Vec<_> = boundaries.into_iter().map(Into::into).collect();
                let message = ToClient::Candidates(&boundaries);
                self.send_to(session, (operation.0, revision.0), &message)
            }
            Effect::TierReads { session, operation, revision, pages, left_pages, micros } => {
                let message = ToClient::TierReads { pages, left_pages, micros };
                self.send_to(session, (operation.0, revision.0), &message)
            }
            Effect::Refused { session, operation, refusal } => {
                let about = operation.map_or((0, 0), |(o, r)| (o.0, r.0));
                self.send_to(session, about, &ToClient::Refused { text: &refusal.to_string() })
            }
            Effect::InstanceState { session, active } => {
                self.send_to(session, (0, 0), &ToClient::InstanceState { active })
            }
            Effect::Fence { session, scheduler } => {
                self.send_to(session, (0, 0), &ToClient::Fence { scheduler: scheduler.0 })
            }
            _ => Ok(()),
        }
    }

    fn send_to(&mut self, session: SessionId, ids: (u64, u32), message: &ToClient<'_>) -> Checked {
        match self.sessions.get(&session.0).and_then(|s| s.link) {
            Some(link) => self.send_down(link, ids, message),
            None => Ok(()),
        }
    }
}
