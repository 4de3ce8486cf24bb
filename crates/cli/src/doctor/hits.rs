//! Why the hit rate is what it is.

use super::Finding;
use crate::status::Report;

/// Every reason that the counters show, the strongest first.
pub(super) fn finding(report: &Report) -> Finding {
    let counters = &report.counters;
    if report.instances.is_empty() {
        return Finding::warn(
            "hits: no engine is connected",
            "start one with `orbitkv run vllm serve MODEL …` or `orbitkv run sglang serve MODEL …`",
        );
    }
    if !report.instances.iter().any(|instance| instance.active) {
        return Finding::fail("hits: none, because no engine is active", "see the engine's line above");
    }
    let Some(percent) = counters.hit_percent() else {
        return Finding::warn(
            "hits: no engine has asked for pages yet",
            "send requests; a prompt shorter than one block is never asked for, nor what the engine itself still holds",
        );
    };
    if counters.found_pages() > 0 {
        return Finding::ok(format!("hits: {percent:.1} % of {} pages asked for", counters.asked_pages()));
    }
    let reasons = reasons(report);
    Finding::warn(format!("hits: none of {} pages asked for", counters.missed_pages), reasons.join("; "))
}

fn reasons(report: &Report) -> Vec<String> {
    let counters = &report.counters;
    let mut reasons = Vec::new();
    let mut add = |count: u64, reason: &str| {
        if count > 0 {
            reasons.push(format!("{count} {reason}"));
        }
    };
    add(
        counters.budget_bypasses,
        "queries were larger than their budget: raise --query-budget or --pool-size",
    );
    add(counters.timed_out, "queries waited in vain for budget: raise --query-budget");
    add(counters.refused_pages, "saves were refused for want of a free page: raise --pool-size");
    add(counters.evicted_pages, "pages were evicted before they were asked for again: raise --pool-size");
    add(counters.aborted_pages, "saves were aborted, because the engine reused their blocks first");
    add(counters.bad_pages, "restored pages did not match their checksum: check this machine's memory");
    add(counters.refusals, "requests broke a rule: the manager's log names them");
    if counters.committed_pages == 0 {
        reasons.push("nothing has been saved yet: prompts must fill a whole block of the engine".to_owned());
    } else if reasons.is_empty() {
        reasons.push(
            "what was asked for was never saved before: a prefix hits from its second use, if model, dtype and block \
             size are the same and the engine itself has dropped it"
                .to_owned(),
        );
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;
    use crate::status::Counters;

    fn with(counters: Counters) -> Finding {
        let mut report: Report = serde_json::from_str(include_str!("../../tests/status.json")).unwrap();
        report.counters = counters;
        finding(&report)
    }

    #[test]
    fn hits_are_fine() {
        let found = with(Counters { ram_pages: 1, missed_pages: 3, ..Counters::default() });
        assert_eq!((found.grade, found.what.contains("25.0 %")), (Grade::Ok, true));
        let found = with(Counters { tier_pages: 2, missed_pages: 2, ..Counters::default() });
        assert_eq!((found.grade, found.what.contains("50.0 % of 4")), (Grade::Ok, true), "{found:?}");
    }

    #[test]
    fn nothing_asked_is_said() {
        assert!(with(Counters::default()).what.contains("asked for pages yet"));
    }

    #[test]
    fn no_hits_have_their_reasons() {
        let missed = Counters { missed_pages: 9, ..Counters::default() };
        let fix = |counters: Counters| with(counters).fix.unwrap();
        assert!(fix(missed.clone()).contains("nothing has been saved"));
        let saved = Counters { committed_pages: 5, ..missed.clone() };
        assert!(fix(saved.clone()).contains("second use"));
        let evicted = fix(Counters { evicted_pages: 5, budget_bypasses: 2, ..saved });
        assert!(
            evicted.contains("5 pages were evicted") && evicted.contains("2 queries were larger"),
            "{evicted}"
        );
        assert!(!evicted.contains("second use"));
    }
}
