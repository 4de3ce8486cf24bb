//! The report for people.

use super::{Counters, Instance, Report, SsdDirectory};
use bytesize::ByteSize;
use std::fmt::Write;
use std::time::Duration;

/// A few aligned lines.
pub(crate) fn render(report: &Report) -> String {
    let (pool, query, counters) = (&report.pool, &report.query, &report.counters);
    let hits = counters.hit_percent().map_or_else(|| "nothing asked yet".to_owned(), |p| format!("{p:.1} %"));
    let draining = if report.draining { ", draining" } else { "" };
    let quarantined = match pool.quarantined_bytes {
        0 => String::new(),
        bytes => format!(", {} quarantined", size(bytes)),
    };
    let rows = [
        ("manager", format!("{} · pid {} · up {}{draining}", report.version, report.pid, uptime(report))),
        (
            "pool",
            format!(
                "{} of {} used, {} pages, {} taken from memory{quarantined}",
                size(pool.used_bytes),
                size(pool.limit_bytes),
                pool.pages,
                size(pool.bytes)
            ),
        ),
        (
            "queries",
            format!(
                "{} of {} reserved, {} leases",
                size(query.reserved_bytes),
                size(query.budget_bytes),
                query.leases
            ),
        ),
        (
            "copies",
            format!(
                "{} saving, {} loading",
                size(report.save.inflight_bytes),
                size(report.load.inflight_bytes)
            ),
        ),
        ("hit rate", format!("{hits} ({}, {} missed)", found(counters), counters.missed_pages)),
        (
            "pages",
            format!(
                "{} saved, {} restored, {} evicted, {} refused",
                counters.committed_pages,
                counters.restored_pages,
                counters.evicted_pages,
                counters.refused_pages
            ),
        ),
        (
            "sessions",
            format!("{} open, {} ended but still copying", report.sessions.open, report.sessions.unfinished),
        ),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<9} {value}");
    }
    for directory in &report.ssd {
        let _ = writeln!(text, "{:<9} {}", "ssd", ssd(directory));
    }
    for instance in &report.instances {
        let _ = writeln!(text, "{:<9} {}", "engine", engine(instance));
    }
    text
}

fn found(counters: &Counters) -> String {
    match counters.tier_pages {
        0 => format!("{} pages found", counters.ram_pages),
        tier => format!("{} pages found in memory, {tier} on the SSD", counters.ram_pages),
    }
}

fn ssd(directory: &SsdDirectory) -> String {
    let SsdDirectory { path, state, mode, capacity_bytes, used_bytes, pages } = directory;
    let (used, capacity) = (size(*used_bytes), size(*capacity_bytes));
    format!("{path} · {state} · {used} of {capacity} used, {pages} pages · {mode}")
}

fn engine(instance: &Instance) -> String {
    let state = if instance.active { "active" } else { "not active" };
    let Instance { engine, engine_version, model, world_size, ranks_attested, .. } = instance;
    let passed = ranks_attested.len();
    format!(
        "{engine} {engine_version} · {model} · {state} · self-test passed on {passed} of {world_size} ranks"
    )
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// Whole seconds, in the two largest units.
fn uptime(report: &Report) -> String {
    let seconds = Duration::from_secs(report.uptime_seconds).as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        serde_json::from_str(include_str!("../../tests/status.json")).unwrap()
    }

    #[test]
    fn what_a_person_asks_for_is_there() {
        let text = render(&report());
        for part in
            ["pid 4711", "4.0 GiB", "25.0 %", "vllm 0.29.0 · tiny · active", "1 of 1 ranks", "1 h 1 min"]
        {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("quarantined"), "{text}");
    }

    #[test]
    fn nothing_asked_is_no_hit_rate_of_zero() {
        let mut report = report();
        report.counters = Counters::default();
        report.pool.quarantined_bytes = 1 << 20;
        let text = render(&report);
        assert!(text.contains("nothing asked yet") && text.contains("1.0 MiB quarantined"), "{text}");
    }
}
