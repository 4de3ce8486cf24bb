//! Reads the directory, segment by segment.

use super::damage::Damage;
use super::place::{VerifyError, open};
use super::progress::Progress;
use super::report::{Found, Report};
use super::tally::Tally;
use orbitkv_store::{Inspection, Source};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

/// Checks everything. Held are one segment's list of pages, 1 MiB of a page, and the names of pages up to a limit.
pub(super) fn check(path: &Path) -> Result<Report, VerifyError> {
    let directory = open(path)?;
    raise_descriptors();
    let unchecked = |source| VerifyError::store(path, source);
    let mut inspection = Inspection::open(directory).map_err(unchecked)?;
    let overview = inspection.overview().clone();
    let (mut damage, mut tally, mut found) = (Damage::default(), Tally::default(), Found::default());
    damage.of_directory(&overview);
    let mut progress = Progress::new(overview.segments, overview.segment_bytes);
    while let Some(segment) = inspection.next_segment(true) {
        damage.of_segment(&segment);
        match segment.source {
            Source::Footer => found.sealed += 1,
            Source::Headers => found.unsealed += 1,
            Source::Nothing => found.free += 1,
        }
        found.unaccounted_pages += segment.unaccounted_pages;
        for page in &segment.pages {
            tally.add(page);
        }
        progress.segment(segment.file_bytes);
    }
    inspection.finish().map_err(unchecked)?;
    Ok(Report::new(path, &overview, found, &tally, damage))
}

/// There is one open file for each segment, and a shell's usual limit is 1024. What cannot be raised shows when
/// a file cannot be opened.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
