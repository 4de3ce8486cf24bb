//! Rows, their verdicts, the table and the summary file.

use crate::rounds::Measured;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

/// What the ratio of a figure to its limit must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Smaller is better.
    AtMost(f64),
    /// Larger is better.
    AtLeast(f64),
}

/// One figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) ours: Measured,
    /// A measurement of the same run, or a promised value.
    pub(crate) limit: f64,
    pub(crate) unit: &'static str,
    pub(crate) target: Target,
}

/// A row as other tools read it. `ours` is the median, `ratio` is `ours / limit`.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    ours: f64,
    low: f64,
    high: f64,
    limit: f64,
    unit: &'static str,
    ratio: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.median / self.limit
    }

    /// False also for a ratio that is no number.
    fn passes(&self) -> bool {
        match self.target {
            Target::AtMost(most) => self.ratio() <= most,
            Target::AtLeast(least) => self.ratio() >= least,
        }
    }

    fn line(&self) -> String {
        let target = match self.target {
            Target::AtMost(most) => format!("≤ {most:.2}"),
            Target::AtLeast(least) => format!("≥ {least:.2}"),
        };
        let (ours, limit) = (digits(self.ours.median), digits(self.limit));
        let spread = format!("{}..{}", digits(self.ours.low), digits(self.ours.high));
        let verdict = if self.passes() { "pass" } else { "short" };
        let Self { name, unit, .. } = self;
        let ratio = self.ratio();
        format!("{name:<45} {ours:>8} {spread:>15} {limit:>8} {unit:<9} {ratio:>6.2} {target:>7}  {verdict}")
    }
}

/// About four digits that say something.
fn digits(value: f64) -> String {
    let decimals = if value >= 1000.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.decimals$}")
}

/// Prints the table and writes the summary.
pub(crate) fn publish(rows: &[Row], path: &Path) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(
        out,
        "{:<45} {:>8} {:>15} {:>8} {:<9} {:>6} {:>7}",
        "figure", "ours", "spread", "limit", "unit", "ratio", "target"
    )?;
    for row in rows {
        writeln!(out, "{}", row.line())?;
    }
    let to_entry = |row: &Row| Entry {
        name: row.name,
        ours: row.ours.median,
        low: row.ours.low,
        high: row.ours.high,
        limit: row.limit,
        unit: row.unit,
        ratio: row.ratio(),
    };
    let entries: Vec<Entry> = rows.iter().map(to_entry).collect();
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let json = serde_json::to_string_pretty(&entries)?;
    fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    let short = rows.iter().filter(|row| !row.passes()).count();
    writeln!(out, "{} pass, {short} short; rows in {}", rows.len() - short, path.display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, target: Target) -> Row {
        Row { name: "x", ours: ours.into(), limit: 10.0, unit: "µs", target }
    }

    #[test]
    fn verdicts_follow_the_direction_of_the_target() {
        assert!(row(15.0, Target::AtMost(1.5)).passes() && !row(15.1, Target::AtMost(1.5)).passes());
        assert!(row(8.0, Target::AtLeast(0.8)).passes() && !row(7.9, Target::AtLeast(0.8)).passes());
        assert!(row(15.1, Target::AtMost(1.5)).line().ends_with("short"));
    }

    #[test]
    fn no_number_is_no_pass() {
        assert!(!row(f64::NAN, Target::AtMost(1.0)).passes());
        assert!(!row(f64::NAN, Target::AtLeast(1.0)).passes());
    }

    #[test]
    fn the_summary_is_a_list_of_rows_with_their_ratio() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/summary.json");
        publish(&[row(5.0, Target::AtMost(1.0))], &path).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let want = serde_json::json!([{
            "name": "x", "ours": 5.0, "low": 5.0, "high": 5.0, "limit": 10.0, "unit": "µs", "ratio": 0.5
        }]);
        assert_eq!(read, want);
    }
}
