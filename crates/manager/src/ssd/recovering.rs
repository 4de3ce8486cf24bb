//! What earlier runs left, read segment by segment between the reads of this one.

use super::device::Device;
use super::names::{found, tagged};
use super::page_disk::PageDisk;
use super::report::{RecoveryStatus, SsdState};
use super::task::Task;
use crate::tier::Done;
use orbitkv_store::{Recovered, Source};
use std::time::Instant;

/// Pages that the core hears of at once.
const AT_ONCE: usize = 64;

/// How far it is.
#[derive(Debug)]
pub(super) struct Recovering {
    since: Instant,
    pages: u64,
    /// Segments whose pages come from a footer, and from the pages' own headers.
    by_footer: u64,
    by_headers: u64,
}

impl Recovering {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, pages: 0, by_footer: 0, by_headers: 0 }
    }
}

impl<D: PageDisk> Device<D> {
    /// Reads the next segment, the newest first.
    pub(super) fn recover_one(&mut self) {
        let Some(mut recovering) = self.recovering.take() else { return };
        match self.log.recover() {
            Some(recovered) => {
                recovering.pages += recovered.pages.len() as u64;
                match recovered.source {
                    Source::Footer => recovering.by_footer += 1,
                    Source::Headers => recovering.by_headers += 1,
                    Source::Nothing => {}
                }
                self.tell_found(&recovered);
                self.report_recovery(&recovering, false);
                self.recovering = Some(recovering);
            }
            None => self.recovered(&recovering),
        }
    }

    /// The newest of a name comes first, and the core keeps that.
    fn tell_found(&mut self, recovered: &Recovered) {
        let mut told = Vec::with_capacity(AT_ONCE);
        for page in recovered.pages.iter().rev() {
            match tagged(self.number, page.extent) {
                Some(extent) => told.push(found(page, extent)),
                // A file of that number is no work of a manager: it is evicted in its turn.
                None => self.log.erase(page.extent),
            }
            if told.len() == AT_ONCE {
                self.outlet.tell(Done::Found(std::mem::replace(&mut told, Vec::with_capacity(AT_ONCE))));
            }
        }
        if !told.is_empty() {
            self.outlet.tell(Done::Found(told));
        }
    }

    fn recovered(&mut self, recovering: &Recovering) {
        let Recovering { pages, by_footer, by_headers, since } = recovering;
        tracing::info!(
            directory = self.report.path(),
            pages,
            ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            segments_by_footer = by_footer,
            segments_by_headers = by_headers,
            "SSD cache found"
        );
        self.report_recovery(recovering, true);
        self.outlet.tell(Done::FoundAll);
        self.set_state(SsdState::Serving, "all that it holds has been found");
        self.measure();
        for write in std::mem::take(&mut self.held) {
            self.line_up(Task::Write(write));
        }
        self.make_room();
    }

    fn report_recovery(&self, recovering: &Recovering, finished: bool) {
        let progress = self.log.progress();
        let status = RecoveryStatus {
            done_segments: progress.done as u64,
            segments: progress.total as u64,
            pages: recovering.pages,
            seconds: recovering.since.elapsed().as_secs_f64(),
            finished,
        };
        self.report.update(|report| report.recovery = status);
    }
}
