//! Copies: beat by beat, each beat looks at who owns the slot it touches.

use crate::content::{STRIPES, checksum};
use crate::engine::{Copy, Direction};
use crate::failure::{Checked, Checker, ensure, fail};
use crate::heap::Happening;
use crate::translate;
use crate::world::World;
use orbitkv_core::{SessionId, SlotState};
use orbitkv_wire::{CommitItem, Slot, ToManager};

impl World {
    /// One stripe of one page moves.
    pub(crate) fn beat(&mut self, id: u64) -> Checked {
        let Some(mut copy) = self.copies.remove(&id) else {
            return Ok(());
        };
        if self.processes[self.clients[copy.client].process].dma_until_us < self.now_us {
            return Ok(());
        }
        let last = copy.beat + 1 == copy.pages.len() * STRIPES;
        if last
            && self.runs(copy.client)
            && let Some(until) = self.stopped_until(copy.client)
        {
            // Nobody is there to see the end of it yet.
            self.heap.push(until, Happening::Beat { copy: id });
            self.copies.insert(id, copy);
            return Ok(());
        }
        if copy.abort_at == Some(copy.beat) && self.runs(copy.client) {
            return self.give_up(&copy);
        }
        self.touch(&mut copy)?;
        copy.beat += 1;
        if copy.beat < copy.pages.len() * STRIPES {
            self.heap.push(self.now_us + copy.beat_us, Happening::Beat { copy: id });
            self.copies.insert(id, copy);
            return Ok(());
        }
        self.end_copy(&mut copy)
    }

    /// Custody, then the bytes.
    fn touch(&mut self, copy: &mut Copy) -> Checked {
        let worker = SessionId(copy.session);
        copy.owed |= self.model.owes(copy.owner, worker);
        let (page, stripe) = (copy.beat / STRIPES, copy.beat % STRIPES);
        let Some(page) = copy.pages.get_mut(page) else {
            return Ok(());
        };
        let at = page.slot();
        let seen = self.core.slot(at);
        match copy.direction {
            Direction::Save => {
                let mine =
                    |s: SlotState| s == SlotState::Filling(worker) || s == SlotState::Quarantined(worker);
                ensure(seen.is_some_and(|s| mine(s.state)), Checker::Custody, || {
                    format!("a save of {worker:?} wrote into {at:?}, which is {seen:?}")
                })?;
                self.memory.write(at, stripe, page.key.words(page.shard)[stripe]);
            }
            Direction::Restore => {
                let held = seen.is_some_and(|s| s.state == SlotState::Resident && s.readers > 0);
                // The manager cannot protect a copy that it has not heard of; the checksum does.
                ensure(held || (copy.early && !copy.owed), Checker::Custody, || {
                    format!("a restore of {worker:?} read from {at:?}, which is {seen:?}")
                })?;
                page.words[stripe] = self.memory.read(at).map_or(0, |words| words[stripe]);
            }
        }
        Ok(())
    }

    /// A save that failed gives its slots back, with nothing running.
    fn give_up(&mut self, copy: &Copy) -> Checked {
        if self.clients[copy.client].session == Some(copy.session) {
            let slots: Vec<Slot> = copy.pages.iter().map(|p| translate::slot(p.slot())).collect();
            self.send_up(copy.client, (0, 0), &ToManager::Abort(&slots));
        }
        self.after_copy(copy.client);
        Ok(())
    }

    fn end_copy(&mut self, copy: &mut Copy) -> Checked {
        let verdicts = match copy.direction {
            Direction::Restore => self.verify(copy)?,
            Direction::Save => Vec::new(),
        };
        if !self.runs(copy.client) {
            return Ok(());
        }
        // A copy of an earlier session cannot be reported: its custody went with that session.
        let same = self.clients[copy.client].session == Some(copy.session);
        let careless = self.rng.chance(self.plan.faults.abuse);
        match copy.direction {
            Direction::Save if same || careless => self.commit(copy),
            Direction::Restore if same => {
                for slot in &verdicts {
                    self.send_up(copy.client, (0, 0), &ToManager::BadPage { slot: *slot });
                }
                self.copy_done(copy.client, copy.owner);
            }
            Direction::Save | Direction::Restore => {}
        }
        match (copy.probe, copy.direction) {
            (true, _) => {
                let well = same && verdicts.is_empty();
                self.probe_copied(copy.client, copy.owner.operation.0, well);
            }
            (false, Direction::Restore) => self.tell(copy.client, copy.owner, verdicts.is_empty()),
            (false, Direction::Save) => {}
        }
        self.after_copy(copy.client);
        Ok(())
    }

    fn after_copy(&mut self, client: usize) {
        self.attest_past(client);
        self.answer_fences(client);
    }

    fn commit(&mut self, copy: &Copy) {
        let item = |page: &crate::engine::CopyPage| CommitItem {
            slot: translate::slot(page.slot()),
            hash: page.key.hash.0,
            crc: checksum(&page.key.words(page.shard)).into(),
        };
        let items: Vec<CommitItem> = copy.pages.iter().map(item).collect();
        let cut = self.rng.index(items.len());
        for some in [&items[..cut], &items[cut..]] {
            if !some.is_empty() {
                self.send_up(copy.client, (0, 0), &ToManager::Commit(some));
            }
        }
    }

    /// Compares what was read with what the pages must hold. Returns the slots whose checksum is wrong.
    fn verify(&mut self, copy: &Copy) -> Result<Vec<Slot>, crate::failure::Failure> {
        let mut bad = Vec::new();
        for page in &copy.pages {
            self.compared += 1;
            let right = page.words == page.key.words(page.shard);
            let intact = checksum(&page.words) == page.part.crc;
            if intact && !right {
                return fail(
                    Checker::Bytes,
                    format!("{:?} holds another page, checksum and all", page.slot()),
                );
            }
            if intact {
                continue;
            }
            let excused = self.rotten.contains(&page.slot()) || (copy.early && !copy.owed);
            ensure(excused, Checker::Bytes, || {
                format!("bytes of {:?} changed while {:?} read them", page.slot(), copy.owner)
            })?;
            bad.push(translate::slot(page.slot()));
        }
        Ok(bad)
    }
}
