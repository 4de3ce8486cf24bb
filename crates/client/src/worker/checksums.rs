//! The copy thread's checksums: pages that are to be restored are judged by them, and saved ones get theirs.

use super::chores::{Check, Checked, Chore, Sum};
use super::copier::{Commit, Copier};
use super::state::Origin;
use super::stats::add;
use super::summers::Summed;
use crate::hooks;
use crate::ticket::PagePart;
use orbitkv_wire::ToManager;
use std::sync::Arc;

impl Copier {
    /// Compares checksums, or computes some; true where a test holds that up.
    pub(super) fn do_chores(&mut self) -> bool {
        if self.chores.has_checks() && hooks::is_held(hooks::COMPARE) {
            self.parked = true;
            return true;
        }
        let chores = self.chores.next(self.summers.at_once());
        let pages: Vec<Summed> = chores.iter().map(|chore| chore.summed().clone()).collect();
        let mut checked = Vec::new();
        for (chore, crc) in chores.into_iter().zip(self.summers.sums(&pages)) {
            match chore {
                Chore::Check(check) => checked.push(self.check(check, crc)),
                Chore::Sum(Sum { page, .. }) => match crc {
                    Some(crc) => self.commits.push(Commit { page, crc }),
                    None => self.give_back(&page),
                },
            }
        }
        // Once all of these are judged: several may be of one restore.
        checked.iter().for_each(|of| self.end_checks(of));
        false
    }

    /// Judges a page, and names who waits for that.
    fn check(&self, check: Check, crc: Option<u64>) -> Checked {
        let Check { of, page, part, .. } = check;
        match &of {
            Checked::Load(job) => {
                if !self.is_sound(job.origin, &part, crc) {
                    job.fail(page);
                }
            }
            Checked::Pin(pin) => self.check_pin(pin, page, &part, crc),
        }
        of
    }

    /// Ends what has no page left to check.
    fn end_checks(&mut self, of: &Checked) {
        if self.chores.checks(of) {
            return;
        }
        match of {
            Checked::Load(job) => {
                job.set_checked();
                if let Some(at) = self.landed.iter().position(|landed| Arc::ptr_eq(landed, job)) {
                    let job = self.landed.swap_remove(at);
                    self.finish_load(&job);
                }
            }
            Checked::Pin(pin) => pin.settle(),
        }
    }

    /// Whether a page of the pool, with this checksum, is what was committed. If not, the manager hears.
    pub(super) fn is_sound(&self, origin: Origin, part: &PagePart, crc: Option<u64>) -> bool {
        if !origin.probe {
            add(&self.work.stats.verified_pages, 1);
        }
        let Some(crc) = crc else { return false };
        if crc != part.crc {
            add(&self.work.stats.bad_pages, 1);
            self.work.must(origin.session, &ToManager::BadPage { slot: part.slot() });
        }
        crc == part.crc
    }
}
