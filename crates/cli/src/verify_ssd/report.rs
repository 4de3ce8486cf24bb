//! What a check says, as it is printed with `--json`.

use super::damage::{Damage, hex};
use super::place::VerifyError;
use super::tally::{Group, Tally};
use orbitkv_store::{Digest, FORMAT, Overview, Part};
use serde::Serialize;
use std::path::Path;

/// The answer in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Clean,
    Damaged,
    NotChecked,
}

/// How segments were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    /// From their footer.
    pub(super) sealed: u64,
    /// From the headers of their pages: open when the manager ended, or without a whole footer.
    pub(super) unsealed: u64,
    /// Without pages.
    pub(super) free: u64,
    /// Pages that were begun in unsealed segments and are not there.
    pub(super) unaccounted_pages: u64,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) directory: String,
    pub(super) outcome: Outcome,
    pub(super) format: u32,
    /// How often the directory has been opened.
    pub(super) epoch: u32,
    pub(super) owner: &'static str,
    pub(super) checkpoint: &'static str,
    pub(super) new_checkpoint_left: bool,
    pub(super) segment_files: usize,
    pub(super) segment_bytes: u64,
    pub(super) segments: Found,
    pub(super) absent_files: Vec<String>,
    pub(super) namespaces: Vec<NamespaceRow>,
    pub(super) forgotten_shards: u64,
    pub(super) older_copies: u64,
    pub(super) uncounted_shards: u64,
    pub(super) damage: Damage,
}

/// One namespace.
#[derive(Debug, Serialize)]
pub(super) struct NamespaceRow {
    /// 64 hex digits. Which engine and model are behind it cannot be told from a digest.
    pub(super) namespace: String,
    pub(super) groups: Vec<GroupRow>,
}

/// One group of a namespace.
#[derive(Debug, Serialize)]
pub(super) struct GroupRow {
    pub(super) group: u16,
    pub(super) pages: u64,
    pub(super) incomplete_pages: u64,
    pub(super) shards: u64,
    pub(super) bytes: u64,
    pub(super) bad_shards: u64,
    pub(super) oldest_sequence: u64,
    pub(super) newest_sequence: u64,
}

impl Report {
    pub(super) fn new(path: &Path, overview: &Overview, found: Found, tally: &Tally, damage: Damage) -> Self {
        let outcome = if damage.places == 0 { Outcome::Clean } else { Outcome::Damaged };
        Self {
            directory: path.display().to_string(),
            outcome,
            format: FORMAT,
            epoch: overview.epoch,
            owner: word(overview.owner),
            checkpoint: word(overview.checkpoint),
            new_checkpoint_left: overview.new_checkpoint,
            segment_files: overview.segments,
            segment_bytes: overview.segment_bytes,
            segments: found,
            absent_files: overview.absent.clone(),
            forgotten_shards: tally.forgotten,
            older_copies: tally.older_copies,
            uncounted_shards: tally.uncounted,
            namespaces: rows(tally),
            damage,
        }
    }
}

fn word(part: Part) -> &'static str {
    match part {
        Part::Whole => "whole",
        Part::Missing => "missing",
        Part::Damaged => "damaged",
    }
}

/// The groups are in the order of their namespaces.
fn rows(tally: &Tally) -> Vec<NamespaceRow> {
    let mut rows: Vec<(Digest, NamespaceRow)> = Vec::new();
    for ((namespace, number), group) in &tally.groups {
        let row = row(*number, group);
        match rows.last_mut() {
            Some((last, of)) if last == namespace => of.groups.push(row),
            _ => rows.push((*namespace, NamespaceRow { namespace: hex(namespace), groups: vec![row] })),
        }
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(number: u16, group: &Group) -> GroupRow {
    let (oldest_sequence, newest_sequence) = group.sequences.unwrap_or_default();
    GroupRow {
        group: number,
        pages: group.pages,
        incomplete_pages: group.incomplete_pages,
        shards: group.shards,
        bytes: group.bytes,
        bad_shards: group.bad,
        oldest_sequence,
        newest_sequence,
    }
}

/// There is nothing to report, and why.
#[derive(Debug, Serialize)]
pub(super) struct Unchecked {
    directory: String,
    outcome: Outcome,
    error: String,
}

impl Unchecked {
    pub(super) fn new(path: &Path, error: &VerifyError) -> Self {
        let directory = path.display().to_string();
        Self { directory, outcome: Outcome::NotChecked, error: error.to_string() }
    }
}
