//! Runs the fixed mix.

use super::{GROUP, Open, QUERY_PAGES, World, busy_us, hash, query, worker};
use crate::mix::{MIX, Turn};
use anyhow::{Context, Result};
use orbitkv_core::{BlockHash, Event, SaveRequest, SlotRef};

/// What a run of the mix has done.
#[derive(Clone, Copy, Default)]
pub(super) struct Mixed {
    pub(super) events: usize,
    pub(super) lookups: usize,
    /// Time of this thread.
    pub(super) micros: f64,
}

impl World {
    /// Writes down what one repetition of the mix will ask for. A manager has just read those hashes from a
    /// socket, so they are in the processor's cache; here they would come out of a list of all pages, which is
    /// memory that the core never sees.
    fn read_requests(&mut self) {
        self.asked.clear();
        for _ in MIX.iter().filter(|turn| matches!(turn, Turn::Query | Turn::Revise)) {
            let first = self.next_chain();
            self.asked.extend(self.hashes.iter().skip(first).take(QUERY_PAGES));
        }
    }

    /// Runs the mix for `events` events, rounded up to whole repetitions. Only the core's work is timed.
    pub(super) fn run_mix(&mut self, events: usize) -> Result<Mixed> {
        let mut mixed = Mixed::default();
        let mut writing = None;
        for _ in 0..events.div_ceil(MIX.len()) {
            self.read_requests();
            let asked = std::mem::take(&mut self.asked);
            let mut queries = asked.chunks_exact(QUERY_PAGES);
            let start = busy_us();
            for turn in &MIX {
                mixed.lookups += self.take_turn(*turn, &mut queries, &mut writing)?;
            }
            mixed.micros += busy_us() - start;
            mixed.events += MIX.len();
            self.asked = asked;
        }
        Ok(mixed)
    }

    /// One event of the mix; the hashes that were looked up.
    fn take_turn<'a>(
        &mut self,
        turn: Turn,
        queries: &mut impl Iterator<Item = &'a [BlockHash]>,
        writing: &mut Option<(SlotRef, BlockHash)>,
    ) -> Result<usize> {
        match turn {
            Turn::Query | Turn::Revise => {
                if turn == Turn::Query {
                    let open = self.next_open();
                    self.open.push_back(open);
                } else {
                    self.open.back_mut().context("an open demand to revise")?.revision.0 += 1;
                }
                let open = *self.open.back().context("an open demand")?;
                let hashes = queries.next().context("hashes to ask for")?;
                query(&mut self.core, &mut self.now, &mut self.effects, open, hashes)?;
                return Ok(hashes.len());
            }
            Turn::Release => {
                let open = self.oldest()?;
                self.release(open)?;
            }
            Turn::Cancel => {
                let Open { session, operation, revision } = self.oldest()?;
                self.step(Event::Cancel { session, operation, revision })?;
            }
            Turn::Reserve => {
                let hash = hash(self.saved);
                self.saved += 1;
                let hashes = [hash];
                let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &hashes };
                let slot = self.reserve(&request)?.first().copied().context("a slot to save into")?;
                *writing = Some((slot, hash));
                return Ok(1);
            }
            Turn::Commit => {
                let (slot, hash) = writing.take().context("a slot to commit")?;
                self.step(Event::Commit { session: worker(0), slot, hash, crc: 1 })?;
            }
        }
        Ok(0)
    }
}
