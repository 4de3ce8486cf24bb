//! What the core thread knows of one device.

use super::Handle;
use crate::ssd::Report;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that has been busy with one thing for so long is not waited for.
const STUCK: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) handle: Handle,
    /// What it says of itself.
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// What its silence says.
    pub(super) stuck: bool,
    /// Payloads that it is to write.
    pub(super) writing: usize,
    /// Only of a directory.
    pub(super) report: Option<Arc<Report>>,
}

impl Device {
    pub(super) fn new(handle: Handle, report: Option<Arc<Report>>) -> Self {
        Self { handle, reads: true, writes: true, stuck: false, writing: 0, report }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.reads && !self.stuck
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writes && !self.stuck
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.report.as_ref().is_some_and(|report| report.busy_for(now).is_some())
    }

    /// Looks whether it moves. True if it has just stopped to.
    pub(super) fn becomes_stuck(&mut self, now: Instant) -> bool {
        let Some(report) = &self.report else { return false };
        let stuck = report.busy_for(now).is_some_and(|busy| busy >= STUCK);
        if stuck == self.stuck {
            return false;
        }
        let directory = report.path();
        if stuck {
            tracing::error!(directory, "the SSD cache directory does not answer: going on without it");
        } else {
            tracing::info!(directory, "the SSD cache directory answers again");
        }
        self.stuck = stuck;
        report.set_stuck(stuck);
        stuck
    }
}
