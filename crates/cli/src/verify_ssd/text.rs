//! The report for people.

use super::damage::Place;
use super::progress::size;
use super::report::{GroupRow, Outcome, Report};
use std::fmt::Write;

/// Digits of a namespace that are shown.
const SHORT: usize = 12;

/// Aligned lines; the last one is the answer.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in head(report) {
        let _ = writeln!(text, "{name:<11} {value}");
    }
    if !report.namespaces.is_empty() {
        text.push_str(
            "\nBy namespace, a digest of engine, model, layout and the like: their names are not stored.\n\
             Oldest and newest are numbers in the order of writing: times are not stored.\n\n",
        );
        let _ = writeln!(text, "{}", line(&COLUMNS.map(str::to_owned)));
    }
    for row in &report.namespaces {
        let short = row.namespace.get(..SHORT).unwrap_or(&row.namespace);
        for group in &row.groups {
            let _ = writeln!(text, "{}", line(&cells(short, group)));
        }
    }
    text.push('\n');
    for place in &report.damage.listed {
        let _ = writeln!(text, "{}", broken(place));
    }
    let _ = writeln!(text, "{}", verdict(report));
    text
}

fn head(report: &Report) -> Vec<(&'static str, String)> {
    let found = &report.segments;
    let mut rows = vec![
        ("directory", format!("{} · format {} · epoch {}", report.directory, report.format, report.epoch)),
        ("segments", {
            let (files, bytes) = (report.segment_files, size(report.segment_bytes));
            let (sealed, unsealed, free) = (found.sealed, found.unsealed, found.free);
            format!("{files} files, {bytes}: {sealed} sealed, {unsealed} without a footer, {free} free")
        }),
        ("checkpoint", report.checkpoint.to_owned()),
        ("owner", report.owner.to_owned()),
    ];
    let mut note = |applies: bool, text: String| rows.extend(applies.then_some(("note", text)));
    note(report.new_checkpoint_left, "a new checkpoint was written and not put in place: a crash".to_owned());
    let absent = report.absent_files.len();
    let first = report.absent_files.first().map_or("", String::as_str);
    note(absent > 0, format!("{absent} segment files of the checkpoint are removed or lost, {first} first"));
    let gaps = found.unaccounted_pages;
    note(
        gaps > 0,
        format!("{gaps} pages were begun in segments without a footer and are not there: a crash, or damage"),
    );
    let forgotten = report.forgotten_shards;
    note(
        forgotten > 0,
        format!("{forgotten} shards of pages belong to cleared namespaces; the next start leaves them out"),
    );
    let copies = report.older_copies;
    note(copies > 0, format!("{copies} shards have a newer copy; only that one counts"));
    let uncounted = report.uncounted_shards;
    note(uncounted > 0, format!("{uncounted} shards were checked, but are too many to be counted below"));
    rows
}

const COLUMNS: [&str; 8] = ["namespace", "group", "pages", "incomplete", "bytes", "bad", "oldest", "newest"];

fn cells(namespace: &str, group: &GroupRow) -> [String; 8] {
    [
        namespace.to_owned(),
        group.group.to_string(),
        group.pages.to_string(),
        group.incomplete_pages.to_string(),
        size(group.bytes),
        group.bad_shards.to_string(),
        group.oldest_sequence.to_string(),
        group.newest_sequence.to_string(),
    ]
}

fn line(cells: &[String; 8]) -> String {
    let [namespace, group, pages, incomplete, bytes, bad, oldest, newest] = cells;
    format!(
        "{namespace:<12} {group:>5} {pages:>10} {incomplete:>10} {bytes:>11} {bad:>6} {oldest:>10} {newest:>10}"
    )
}

fn broken(place: &Place) -> String {
    let at = place.offset_bytes.map(|offset| format!(" at {offset}")).unwrap_or_default();
    let page = place.page.as_ref().map(|page| {
        let short = |digits: &str| digits.get(..SHORT).unwrap_or(digits).to_owned();
        let (namespace, key) = (short(&page.namespace), short(&page.key));
        format!(" (namespace {namespace}, group {}, page {key}, shard {})", page.group, page.shard)
    });
    format!("bad  {}{at}: {}{}", place.file, place.what, page.unwrap_or_default())
}

fn verdict(report: &Report) -> String {
    let damage = &report.damage;
    if report.outcome == Outcome::Clean {
        return "clean: every page, footer and header that is there was read and holds".to_owned();
    }
    let more = match damage.places - damage.listed.len() as u64 {
        0 => String::new(),
        more => format!(", {more} of them not listed"),
    };
    let cut = match damage.unsealed {
        0 => String::new(),
        some => format!(
            "\n{some} of them in segments that were never sealed: a power cut leaves such without a bad disk"
        ),
    };
    format!(
        "DAMAGED: bad places: {}{more}, of them bad pages: {}. Nothing was changed. The manager takes a bad page for a miss; \
         where this comes again, replace the disk.{cut}",
        damage.places, damage.bad_pages
    )
}
