//! What a directory's thread tells about itself: for `/status`, for metrics, and for whoever watches it.

use super::write_budget::BudgetStatus;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a directory can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SsdState {
    /// Reads what earlier runs left; what was found can be read, and writes wait.
    #[default]
    Recovering,
    /// Reads and writes.
    Serving,
    /// The file system is full: reads, and tries to write again now and then.
    Full,
    /// A write failed: reads until the manager is started again.
    ReadOnly,
    /// Reads fail as well: it is not used any more.
    Off,
    /// One operation takes very long: nobody waits for it until it moves again.
    Stuck,
}

impl SsdState {
    pub(crate) const ALL: [Self; 6] =
        [Self::Recovering, Self::Serving, Self::Full, Self::ReadOnly, Self::Off, Self::Stuck];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recovering => "recovering",
            Self::Serving => "serving",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Off => "off",
            Self::Stuck => "stuck",
        }
    }
}

/// One directory in `/status`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SsdStatus {
    pub(crate) path: String,
    pub(crate) state: SsdState,
    /// How pages are read and written.
    pub(crate) mode: String,
    /// Whether they go past the page cache.
    pub(crate) direct: bool,
    /// What brings them to the kernel.
    pub(crate) engine: &'static str,
    /// Whether the kernel knows all pool segments, so that it need not look their pages up for each request.
    pub(crate) registered: bool,
    /// The cap.
    pub(crate) capacity_bytes: u64,
    /// What the file system has given to the directory.
    pub(crate) used_bytes: u64,
    /// Pages with headers and padding; erased ones count until their segment goes.
    pub(crate) page_bytes: u64,
    pub(crate) pages: u64,
    pub(crate) segments: u64,
    /// Segments whose files somebody protects: they are passed over, and count against the cap.
    pub(crate) barred_segments: u64,
    pub(crate) recovery: RecoveryStatus,
    /// Pages, headers and padding included; moved pages count in both.
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Of those, for pages that were moved to keep them: written once more than anybody asked for.
    pub(crate) relocated_bytes: u64,
    /// Reads and writes that the file system refused.
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
    /// Pages that were read and are not what they should be.
    pub(crate) mismatches: u64,
    /// Pages that went with their segment.
    pub(crate) evicted_pages: u64,
    /// Pages that were kept when their segment went.
    pub(crate) relocated_pages: u64,
    /// Pages that were not written because the budget was used up.
    pub(crate) write_budget_drops: u64,
    /// None without a limit.
    pub(crate) write_budget: Option<BudgetStatus>,
    /// Resets of a namespace that hold for later managers too.
    pub(crate) recorded_resets: u64,
    /// Resets that could not be recorded: later managers may find what was reset.
    pub(crate) unrecorded_resets: u64,
}

/// How far a directory has been read after the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct RecoveryStatus {
    pub(crate) done_segments: u64,
    pub(crate) segments: u64,
    /// Pages found so far.
    pub(crate) pages: u64,
    /// From the start of the thread until now, or until all had been read.
    pub(crate) seconds: f64,
    pub(crate) finished: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Report {
    status: Mutex<SsdStatus>,
    base: Instant,
    /// When what is under way longest was begun, in milliseconds since `base` and one; zero: nothing is.
    busy_since: AtomicU64,
    stuck: AtomicBool,
}

impl Report {
    pub(crate) fn new(status: SsdStatus) -> Self {
        let (busy_since, stuck) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { status: Mutex::new(status), base: Instant::now(), busy_since, stuck }
    }

    fn lock(&self) -> MutexGuard<'_, SsdStatus> {
        // Numbers alone: none is worse for a thread that has ended in between.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut SsdStatus)) {
        change(&mut self.lock());
    }

    pub(crate) fn status(&self) -> SsdStatus {
        let mut status = self.lock().clone();
        if self.stuck.load(Ordering::Relaxed) {
            status.state = SsdState::Stuck;
        }
        status
    }

    pub(crate) fn path(&self) -> String {
        self.lock().path.clone()
    }

    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Relaxed);
    }

    /// The thread is busy since then, or waits for orders.
    pub(crate) fn busy(&self, since: Option<Instant>) {
        let millis = since.map_or(0, |since| {
            1 + u64::try_from(since.saturating_duration_since(self.base).as_millis()).unwrap_or(u64::MAX - 1)
        });
        self.busy_since.store(millis, Ordering::Relaxed);
    }

    /// How long the thread has been busy with what is under way longest.
    pub(crate) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let since = self.busy_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.saturating_duration_since(self.base + Duration::from_millis(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_how_long_the_oldest_has_taken() {
        let report = Report::new(SsdStatus::default());
        assert_eq!(report.busy_for(Instant::now()), None);
        let since = report.base + Duration::from_millis(1500);
        report.busy(Some(since));
        assert_eq!(report.busy_for(since + Duration::from_secs(11)), Some(Duration::from_secs(11)));
        report.busy(None);
        assert_eq!(report.busy_for(since), None);
        report.set_stuck(true);
        assert_eq!(report.status().state, SsdState::Stuck);
    }
}
