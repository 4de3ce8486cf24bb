//! The running manager and the engines on it.

use super::{Finding, hits, ssd};
use crate::manager::{Endpoint, Http, find};
use crate::status::{self, Instance, Report};
use bytesize::ByteSize;
use orbitkv_shm::available_memory;

pub(super) fn findings(endpoint: &Endpoint) -> Vec<Finding> {
    let shown = endpoint.socket.display();
    let running = match find(endpoint) {
        Ok(Some(running)) => running,
        Ok(None) => {
            let what = format!("manager: none serves on {shown}");
            return vec![Finding::warn(
                what,
                "start an engine with `orbitkv run vllm serve MODEL …` or `orbitkv run sglang serve MODEL …`",
            )];
        }
        Err(error) => return vec![Finding::fail(format!("manager: {error}"), "choose another --socket")],
    };
    let http = match running.http {
        Http::At(http) => http,
        Http::Off => {
            let what = format!("manager: serves on {shown}, without HTTP");
            return vec![Finding::warn(what, "start it with an --http-addr to learn more")];
        }
        Http::Unknown => {
            let what = format!("manager: serves on {shown}, its HTTP address is not known");
            return vec![Finding::warn(what, "give it with --http-addr")];
        }
    };
    match status::fetch(http) {
        Ok(report) => of_report(&report),
        Err(error) => {
            vec![Finding::fail(format!("manager: {error}"), "look at its log; restart it if it is stuck")]
        }
    }
}

fn of_report(report: &Report) -> Vec<Finding> {
    let mut findings = vec![serving(report), pool(report)];
    findings.extend(report.ssd.iter().map(ssd::of_manager));
    findings.extend(report.instances.iter().map(engine));
    findings.push(hits::finding(report));
    findings
}

fn serving(report: &Report) -> Finding {
    let what = format!("manager: {} with pid {}", report.version, report.pid);
    if report.draining {
        return Finding::fail(format!("{what} is stopping"), "wait until it has ended and start it again");
    }
    Finding::ok(what)
}

/// Segments grow with use: what is not taken yet must still be there.
fn pool(report: &Report) -> Finding {
    let left = report.pool.limit_bytes.saturating_sub(report.pool.bytes);
    let usable = available_memory().map_or(u64::MAX, |memory| memory.usable_bytes());
    let what = format!("pool: {} may still grow by {}", size(report.pool.limit_bytes), size(left));
    if left > usable {
        let fix = format!(
            "free memory, or start the manager with --pool-size {}mib",
            (report.pool.bytes + usable / 2) >> 20
        );
        return Finding::warn(format!("{what}, and only {} of memory are available", size(usable)), fix);
    }
    Finding::ok(what)
}

fn engine(instance: &Instance) -> Finding {
    let Instance { engine, engine_version, model, world_size, ranks_attested, active, .. } = instance;
    let name = format!("engine: {engine} {engine_version} with {model}");
    let passed = ranks_attested.len();
    if *active {
        return Finding::ok(format!("{name} is active, its self-test passed"));
    }
    Finding::fail(
        format!("{name} is not active: its self-test passed on {passed} of {world_size} ranks"),
        "the engine serves without the cache; its log lines with \"OrbitKV\" say why",
    )
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    fn report() -> Report {
        serde_json::from_str(include_str!("../../tests/status.json")).unwrap()
    }

    #[test]
    fn a_good_manager_has_no_failure() {
        let found = of_report(&report());
        assert!(found.iter().all(|finding| finding.grade != Grade::Fail), "{found:?}");
    }

    #[test]
    fn an_engine_without_its_self_test_fails() {
        let mut report = report();
        report.instances[0].active = false;
        report.instances[0].ranks_attested.clear();
        let found = of_report(&report);
        assert!(
            found.iter().any(|finding| finding.grade == Grade::Fail && finding.what.contains("0 of 1 ranks"))
        );
    }

    #[test]
    fn a_pool_that_memory_cannot_hold_is_warned_about() {
        let mut report = report();
        report.pool.limit_bytes = u64::MAX;
        assert_eq!(pool(&report).grade, Grade::Warn);
    }
}
