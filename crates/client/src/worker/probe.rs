//! The self-test at every attach: one page through the manager and back, on memory no request uses.

use super::accept::Before;
use super::scratch::BlockCopies;
use super::{Core, SelfTest, device};
use crate::link::{Session, random_u128};
use crate::operations::{Demand, QueryState};
use crate::registration::PROBE_GROUP;
use crate::scheduler::{Query, Reservation};
use crate::{GrantStatus, Hash};
use orbitkv_wire::ToManager;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Limit of the whole self-test.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at something that nobody signals, and between two requests while a segment grows.
const RETRY: Duration = Duration::from_millis(20);
/// Scratch blocks: where the page is saved from, and where it is restored to.
const SOURCE: u32 = 0;
const TARGET: u32 = 1;
/// Scratch blocks looked at for stray writes.
const MAX_WATCHED: usize = 16;

/// Wakes the probe's thread with each new session.
#[derive(Default)]
pub(super) struct Attach {
    state: Mutex<(Option<Session>, bool)>,
    changed: Condvar,
}

impl Attach {
    pub(super) fn attached(&self, session: Session) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(session);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// The next session to test; `None` when the client is closed.
    fn next(&self) -> Option<Session> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self
            .changed
            .wait_while(state, |(session, stop)| session.is_none() && !*stop)
            .unwrap_or_else(PoisonError::into_inner);
        if state.1 { None } else { state.0.take() }
    }

    fn interrupted(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.is_some() || state.1
    }
}

/// The probe's thread.
pub(super) fn run(core: &Arc<Core>) {
    while let Some(session) = core.attach.next() {
        let verdict = if !core.layout_probe_passed {
            Err("the layout probe failed".to_owned())
        } else if core.work.is_lost() {
            Err(device::LOST.to_owned())
        } else {
            Probe { core, session, until: Instant::now() + LIMIT }.path()
        };
        // A test that another connection cut short says nothing about this one.
        if core.attach.interrupted() || core.work.link.session() != Some(session) {
            continue;
        }
        let passed = verdict.is_ok();
        core.set_self_test(match verdict {
            Ok(()) => SelfTest::Passed,
            Err(text) => SelfTest::Failed(text),
        });
        core.work.must(session.number, &ToManager::Attest { passed });
    }
}

struct Probe<'a> {
    core: &'a Arc<Core>,
    session: Session,
    until: Instant,
}

impl Probe<'_> {
    /// Saves, poisons, restores, compares.
    fn path(&self) -> Result<(), String> {
        let layout = &self.core.scratch;
        let seed = random_u128().map_err(|e| e.to_string())?;
        let pattern = pattern(seed, layout.page_bytes());
        let poison: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        let mut blocks = BlockCopies::new(&self.core.device).map_err(|e| e.to_string())?;
        let scatter = |blocks: &mut BlockCopies, block: u32, bytes: &[u8]| {
            blocks.scatter(layout, block as usize, bytes).map_err(|e| e.to_string())
        };
        scatter(&mut blocks, SOURCE, &pattern)?;
        let mut hash: Hash = [0; 32];
        hash[..16].copy_from_slice(&seed.to_le_bytes());
        hash[16..].copy_from_slice(&(!seed).to_le_bytes());
        self.save(hash)?;
        scatter(&mut blocks, TARGET, &poison)?;
        let before = self.watch(&mut blocks)?;
        self.restore(hash)?;
        let after = self.watch(&mut blocks)?;
        self.core.operations.forget(self.session.number, PROBE_GROUP, &[hash]);
        for (block, (before, after)) in before.iter().zip(&after).enumerate() {
            let expected = if block == TARGET as usize { &pattern } else { before };
            if let Some(at) = expected.iter().zip(after).position(|(a, b)| a != b) {
                return Err(format!("byte {at} of scratch block {block} is wrong after a restore"));
            }
        }
        Ok(())
    }

    fn save(&self, hash: Hash) -> Result<(), String> {
        let reservation = loop {
            let cells = self.core.operations.reserve(PROBE_GROUP, None, 0, &[hash]);
            let reservation = Reservation::new(cells, Arc::clone(&self.core.operations));
            self.wait("room for the probe page", || reservation.poll())?;
            match reservation.statuses()[..] {
                [GrantStatus::Slots] => break reservation,
                // The segment for it is being made.
                [GrantStatus::Busy] => self.pause("room for the probe page")?,
                // Only the pool can refuse a page that the rank itself writes.
                [GrantStatus::Refused] => {
                    return Err("the manager's pool has no slot for a page of this rank: each rank needs a \
                                segment that holds a page; raise --pool-size or lower --segment-size"
                        .to_owned());
                }
                ref other => return Err(format!("the manager answered {other:?} to the probe page's save")),
            }
        };
        let ticket = reservation.ticket(&[0]).map_err(|e| e.to_string())?;
        let save = self.core.save_ticket(&ticket, &[SOURCE], Before::Probe).map_err(|e| e.to_string())?;
        self.wait("the probe page's copy into the pool", || save.committed() == 1 || save.poll())?;
        // The copy has ended; its commit follows, unless it failed.
        self.wait("the probe page's commit", || save.committed() == 1)
    }

    fn restore(&self, hash: Hash) -> Result<(), String> {
        let query = loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
            let demand = Demand { deadline_ms, ..Demand::default() };
            let cell = self.core.operations.query(PROBE_GROUP, &[hash], demand);
            let query = Query::new(cell, Arc::clone(&self.core.operations));
            self.wait("the probe page's lookup", || query.wait(RETRY) != QueryState::Pending)?;
            if query.poll() == QueryState::Ready {
                break query;
            }
            self.pause("the probe page to be found")?;
        };
        let ticket = query.restore(0, 1).map_err(|e| e.to_string())?;
        let load = self.core.restore_ticket(&ticket, &[TARGET], Before::Probe).map_err(|e| e.to_string())?;
        if let Err(text) = self.wait("the probe page's copy out of the pool", || load.wait(RETRY)) {
            // The scratch must be at rest before the next test uses it.
            let _ = load.abort(LIMIT);
            return Err(text);
        }
        if load.failed_blocks().is_empty() {
            Ok(())
        } else {
            Err("the probe page did not come back whole".to_owned())
        }
    }

    /// Every scratch block that is looked at.
    fn watch(&self, blocks: &mut BlockCopies) -> Result<Vec<Vec<u8>>, String> {
        let layout = &self.core.scratch;
        let gather = |block| blocks.gather(layout, block).map_err(|e| e.to_string());
        (0..layout.num_blocks().min(MAX_WATCHED)).map(gather).collect()
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) -> Result<(), String> {
        while !done() {
            self.check(what)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn pause(&self, what: &str) -> Result<(), String> {
        self.check(what)?;
        std::thread::sleep(RETRY);
        Ok(())
    }

    fn check(&self, what: &str) -> Result<(), String> {
        if self.core.attach.interrupted() || self.core.work.link.session() != Some(self.session) {
            return Err("the connection was lost".to_owned());
        }
        if Instant::now() >= self.until {
            return Err(format!("waited {} s for {what}", LIMIT.as_secs()));
        }
        Ok(())
    }
}

/// Pseudo-random bytes: shifted, swapped or repeated parts of them would not compare equal.
fn pattern(seed: u128, bytes: usize) -> Vec<u8> {
    let mut state = (seed as u64) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        out.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    out.truncate(bytes);
    out
}
