//! What a directory can do after what went wrong.

use super::device::Device;
use super::page_disk::PageDisk;
use super::report::SsdState;
use crate::tier::Done;
use orbitkv_store::{Advice, DiskError, StoreError};

/// So many reads in a row that the file system refuses: the directory is of no use.
const READS_IN_A_ROW: u32 = 16;
/// So many bad pages are logged one by one.
const LOGGED: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) state: SsdState,
    /// Full, and writing all the same to see whether there is room now.
    trying: bool,
    /// There was, since it began to try.
    succeeded: bool,
    failed_reads: u32,
    logged: u32,
}

impl Health {
    pub(super) fn read_well(&mut self) {
        self.failed_reads = 0;
    }

    pub(super) fn wrote_well(&mut self) {
        self.succeeded = true;
    }

    /// Whether this bad page is to be logged.
    pub(super) fn is_worth_a_line(&mut self) -> bool {
        self.logged = self.logged.saturating_add(1);
        self.logged <= LOGGED
    }
}

impl<D: PageDisk> Device<D> {
    /// Whether pages may be written now.
    pub(super) fn is_writable(&self) -> bool {
        match self.health.state {
            SsdState::Serving => true,
            SsdState::Full => self.health.trying,
            _ => false,
        }
    }

    /// While full: whether pages are written to see if there is room again. Nobody is told of it: the state is the
    /// same until one of them has a place.
    pub(super) fn set_trying(&mut self, trying: bool) {
        self.health.succeeded = false;
        if std::mem::replace(&mut self.health.trying, trying) != trying {
            self.tell_state();
        }
    }

    /// Now and then, while full. Where nothing has failed since the last time, what was written has shown that there is
    /// room, or the file system says so. One page alone has not: it had a place in what is allocated already.
    pub(super) fn try_again(&mut self) {
        let room = self.health.succeeded || self.log.can_create().unwrap_or(false);
        if self.health.trying && room {
            self.set_state(SsdState::Serving, "there is room again");
        } else {
            self.set_trying(true);
        }
    }

    fn tell_state(&mut self) {
        let (reads, writes) = (self.health.state != SsdState::Off, self.is_writable());
        self.outlet.tell(Done::State { reads, writes });
    }

    /// Changes what is done, says so once, and tells the core.
    pub(super) fn set_state(&mut self, state: SsdState, why: &str) {
        let before = self.health.state;
        // Nothing is trusted again before the next start.
        let kept = before == SsdState::Off || (before == SsdState::ReadOnly && state != SsdState::Off);
        if before == state && state == SsdState::Full {
            return self.set_trying(false);
        }
        if before == state || kept {
            return;
        }
        (self.health.state, self.health.trying) = (state, false);
        self.report.update(|status| status.state = state);
        let directory = self.report.path();
        match state {
            // What was found has been said.
            SsdState::Serving if before == SsdState::Recovering => {}
            SsdState::Serving | SsdState::Recovering | SsdState::Stuck => {
                tracing::info!(directory, "SSD cache reads and writes: {why}");
            }
            SsdState::Full => tracing::warn!(directory, "SSD cache writes nothing for now: {why}"),
            SsdState::ReadOnly => {
                tracing::error!(
                    directory,
                    "SSD cache writes nothing until the manager is started again: {why}"
                );
            }
            SsdState::Off => tracing::error!(directory, "SSD cache is off: {why}; going on without it"),
        }
        self.tell_state();
    }

    /// The store could not do something of its own.
    pub(super) fn store_failed(&mut self, error: &StoreError) {
        self.report.update(|status| status.write_errors += 1);
        match error.advice() {
            Advice::Retry if matches!(error, StoreError::Barred { .. }) && self.health.is_worth_a_line() => {
                tracing::warn!(directory = self.report.path(), "SSD cache: {error}");
            }
            Advice::Miss | Advice::Retry => tracing::debug!("SSD cache: {error}"),
            Advice::ReadOnly => self.set_state(SsdState::ReadOnly, &error.to_string()),
            Advice::TierOff | Advice::Fatal => self.set_state(SsdState::Off, &error.to_string()),
        }
    }

    /// The file system refused a page.
    pub(super) fn write_failed(&mut self, error: &DiskError) {
        self.report.update(|status| status.write_errors += 1);
        if *error == DiskError::NoSpace {
            self.set_state(SsdState::Full, "the file system is full; free some space, or lower the capacity");
        } else {
            self.set_state(SsdState::ReadOnly, &format!("a page cannot be written: {error}"));
        }
    }

    /// The file system did not give a page.
    pub(super) fn read_failed(&mut self, error: &DiskError) {
        self.report.update(|status| status.read_errors += 1);
        if self.health.is_worth_a_line() {
            tracing::warn!(directory = self.report.path(), "a page cannot be read: {error}");
        }
        self.health.failed_reads += 1;
        if self.health.failed_reads >= READS_IN_A_ROW {
            self.set_state(SsdState::Off, &format!("{READS_IN_A_ROW} reads in a row failed: {error}"));
        }
    }
}
