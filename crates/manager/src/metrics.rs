//! `/metrics`: a snapshot in the Prometheus text format. docs/metrics.md explains each name.

use crate::snapshot::Snapshot;
use crate::ssd::{SsdState, SsdStatus};
use orbitkv_core::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;

/// All metrics of one snapshot as text.
pub(crate) fn render(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("orbitkv");
    registry.register_collector(Box::new(Scrape(snapshot)));
    let mut text = String::new();
    prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape(Snapshot);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.pool(&mut page)?;
        self.query(&mut page)?;
        self.save_and_load(&mut page)?;
        self.tier(&mut page)?;
        self.ssd(&mut page)?;
        self.scrub(&mut page)?;
        self.sessions(&mut page)?;
        self.shell(&mut page)
    }
}

impl Scrape {
    fn pool(&self, page: &mut Page<'_>) -> fmt::Result {
        let pool = &self.0.status.pool;
        page.gauge("pool_limit_bytes", "Most bytes that segments may take", pool.limit_bytes)?;
        page.gauge("pool_bytes", "Bytes of all segments", pool.bytes)?;
        page.gauge("pool_used_bytes", "Bytes of slots in use", pool.used_bytes)?;
        page.gauge(
            "pool_quarantined_bytes",
            "Bytes that an ended client may still write",
            pool.quarantined_bytes,
        )?;
        page.gauge("pool_huge_page_bytes", "Bytes of segments in huge pages", pool.huge_page_bytes)?;
        page.gauge("pool_segments", "Memory segments", pool.segments as u64)?;
        page.gauge("pool_pages", "Pages that can be restored", pool.pages as u64)?;
        let failed = self.0.tally.segments_failed;
        page.counter("pool_growth_failures", "Segments that could not be had", failed)?;
        page.counter("evicted_pages", "Pages evicted for room", self.0.counters.evicted_pages)?;
        page.counter("dropped_pages", "Pages dropped by request", self.0.counters.dropped_pages)
    }

    fn query(&self, page: &mut Page<'_>) -> fmt::Result {
        let (query, counters) = (&self.0.status.query, &self.0.counters);
        page.gauge("query_budget_bytes", "Most bytes that queries may own", query.budget_bytes)?;
        page.gauge("query_reserved_bytes", "Bytes that queries own", query.reserved_bytes)?;
        let speculative = query.speculative_reserved_bytes;
        page.gauge("query_speculative_reserved_bytes", "Bytes owned by reads ahead of demand", speculative)?;
        let (peak, speculative) = (query.peak_reserved_bytes, query.peak_speculative_reserved_bytes);
        page.gauge("query_reserved_peak_bytes", "Most bytes that queries ever owned at once", peak)?;
        let help = "Most bytes that reads ahead of demand ever owned at once";
        page.gauge("query_speculative_reserved_peak_bytes", help, speculative)?;
        let phases = query.reserved_bytes_by_phase.iter().map(|(account, bytes)| (*account, *bytes));
        page.gauges("query_reserved_bytes_by_phase", "Bytes that queries own, by account", "phase", phases)?;
        let operations = query.operations.iter().map(|(phase, count)| (*phase, *count as u64));
        page.gauges("operations", "Queries that are not over, by phase", "phase", operations)?;
        page.gauge("leases", "Queries with leased pages", query.leases as u64)?;
        page.counter("queries", "Queries with a final answer", counters.queries)?;
        page.counter("query_budget_waits", "Queries that waited for budget", counters.budget_waits)?;
        page.histogram("query_budget_wait_seconds", "Ended waits for budget", &self.0.budget_wait)?;
        page.counter("query_budget_bypasses", "Queries larger than their budget", counters.budget_bypasses)?;
        page.counter("query_timeouts", "Waits for budget or reads ended by time", counters.timed_out)?;
        page.counter("lease_expirations", "Leases that nobody handed out in time", counters.expired_leases)?;
        page.counter(
            "query_coalesced_reads",
            "Reads that one more query waited for",
            counters.coalesced_reads,
        )?;
        page.counter(
            "query_preparations",
            "Preparations and warm-ups that were begun",
            counters.speculations,
        )?;
        let skipped = counters.skipped_speculations;
        page.counter("query_preparations_skipped", "Preparations and warm-ups that were not", skipped)?;
        page.counter("query_preparations_claimed", "Preparations that a query claimed", counters.claims)?;
        let expired = counters.expired_preparations;
        page.counter("query_preparations_expired", "Preparations not claimed in time", expired)?;
        let (read, restored) = (counters.ahead_read_bytes, counters.ahead_restored_bytes);
        let unused = counters.ahead_unused_bytes;
        page.counter("warmup_prepared_bytes", "Bytes read ahead of demand", read)?;
        page.counter("warmup_restored_bytes", "The part of them that was restored", restored)?;
        page.counter("warmup_unused_bytes", "The part of them that left memory unused", unused)?;
        let pending = read.saturating_sub(restored).saturating_sub(unused);
        page.gauge("warmup_pending_bytes", "The part of them that is still to be used", pending)?;
        // Without a tier nothing is found there, whatever it is called.
        let tier = self.0.status.tier.as_ref().map_or("ssd", |tier| tier.kind);
        let tiers =
            [("ram", counters.ram_pages), (tier, counters.tier_pages), ("miss", counters.missed_pages)];
        page.counters("tier_block_requests", "Pages asked for, by where they were found", "tier", tiers)
    }

    fn save_and_load(&self, page: &mut Page<'_>) -> fmt::Result {
        let (status, counters) = (&self.0.status, &self.0.counters);
        page.gauge("save_inflight_bytes", "Bytes granted and not committed", status.save.inflight_bytes)?;
        page.counter("save_pages_granted", "Pages for which slots were granted", counters.granted_pages)?;
        page.counter("save_pages_committed", "Pages sealed", counters.committed_pages)?;
        page.counter(
            "save_pages_duplicate",
            "Pages sealed twice, the second one freed",
            counters.duplicate_pages,
        )?;
        page.counter("save_pages_aborted", "Granted pages that were never sealed", counters.aborted_pages)?;
        page.counter("save_refused", "Pages for which no slot was granted", counters.refused_pages)?;
        page.gauge("load_inflight_bytes", "Bytes that workers may be copying", status.load.inflight_bytes)?;
        page.counter("load_pages", "Pages handed to workers", counters.restored_pages)?;
        page.counter("load_bad_pages", "Restored pages that did not match", counters.bad_pages)?;
        let workers = status.load.verifying_workers.iter().map(|(mode, workers)| (*mode, *workers));
        let help = "Connected workers, by which restored pages they compare with their checksums";
        page.gauges("restore_verification_info", help, "mode", workers)
    }

    fn tier(&self, page: &mut Page<'_>) -> fmt::Result {
        let (Some(tier), counters) = (&self.0.status.tier, &self.0.counters) else {
            return Ok(());
        };
        page.gauge("tier_pages", "Pages in the slower tier", tier.pages as u64)?;
        page.gauge("tier_write_queue_pending", "Pages being written", tier.write_queue_pending as u64)?;
        page.gauge("tier_read_queue_pending", "Pages being read", tier.read_queue_pending as u64)?;
        page.counter("tier_write_pages", "Pages written", counters.written_pages)?;
        page.counter(
            "tier_found_pages",
            "Pages found that an earlier run had written",
            counters.found_pages,
        )?;
        page.counter("tier_write_drops", "Pages not written", counters.dropped_writes)?;
        page.counter("tier_read_pages", "Pages read", counters.read_pages)?;
        page.counter(
            "tier_read_failures",
            "Pages that could not be read or did not match",
            counters.failed_reads,
        )
    }

    /// All directories together.
    fn ssd(&self, page: &mut Page<'_>) -> fmt::Result {
        let (Some(tier), all) = (&self.0.status.tier, &self.0.status.ssd) else { return Ok(()) };
        if all.is_empty() {
            return Ok(());
        }
        let sum = |of: fn(&SsdStatus) -> u64| all.iter().map(of).sum::<u64>();
        page.gauge("ssd_read_queue_pending", "Pages being read", tier.read_queue_pending as u64)?;
        page.gauge("ssd_write_queue_pending", "Pages being written", tier.write_queue_pending as u64)?;
        page.gauge(
            "ssd_capacity_bytes",
            "Most bytes that the directories may take",
            sum(|s| s.capacity_bytes),
        )?;
        page.gauge("ssd_used_bytes", "Bytes that file systems have given to them", sum(|s| s.used_bytes))?;
        page.gauge("ssd_page_bytes", "Bytes of pages, headers and padding included", sum(|s| s.page_bytes))?;
        page.counter("ssd_read_bytes", "Bytes read, moved pages included", sum(|s| s.read_bytes))?;
        page.counter("ssd_written_bytes", "Bytes written, moved pages included", sum(|s| s.written_bytes))?;
        page.counter(
            "ssd_relocated_bytes",
            "Bytes written for pages that were kept",
            sum(|s| s.relocated_bytes),
        )?;
        let errors = [("read", sum(|s| s.read_errors)), ("write", sum(|s| s.write_errors))];
        page.counters("ssd_errors", "What the file systems refused", "direction", errors)?;
        page.counter("ssd_mismatches", "Pages read that are not what they should be", sum(|s| s.mismatches))?;
        page.counter("ssd_evicted_pages", "Pages that went with their segment", sum(|s| s.evicted_pages))?;
        page.counter("ssd_relocated_pages", "Pages kept when it went", sum(|s| s.relocated_pages))?;
        let help = "Pages that were not written, by reason";
        let dropped = [("write_budget", sum(|s| s.write_budget_drops))];
        page.counters("ssd_dropped_writes", help, "reason", dropped)?;
        if let Some(budget) = all.first().and_then(|ssd| ssd.write_budget) {
            let bytes = [(budget.period, budget.bytes)];
            page.gauges(
                "ssd_write_budget_bytes",
                "Most bytes that are written in a period",
                "period",
                bytes,
            )?;
            let help = "What could be written now";
            page.gauge("ssd_write_budget_left_bytes", help, budget.left_bytes)?;
        }
        let in_state = |state| all.iter().filter(|ssd| ssd.state == state).count() as u64;
        let states = SsdState::ALL.map(|state| (state.name(), in_state(state)));
        page.gauges("ssd_directories", "Cache directories, by what they can do", "state", states)?;
        let mut engines = BTreeMap::new();
        all.iter().for_each(|ssd| *engines.entry(ssd.engine).or_insert(0) += 1);
        page.gauges("ssd_io", "Cache directories, by what brings pages to the kernel", "engine", engines)?;
        page.gauge(
            "ssd_page_cache",
            "Cache directories whose pages go through the page cache",
            sum(|s| u64::from(!s.direct)),
        )?;
        let barred = sum(|s| s.barred_segments);
        page.gauge("ssd_barred_segments", "Segments that can be neither reused nor removed", barred)?;
        let registered = all.iter().filter(|ssd| ssd.registered).count() as u64;
        let buffers = [("registered", registered), ("unregistered", all.len() as u64 - registered)];
        page.gauges("ssd_buffers", "Cache directories, by how the kernel knows the pool", "kind", buffers)?;
        let resets = [("yes", sum(|s| s.recorded_resets)), ("no", sum(|s| s.unrecorded_resets))];
        page.counters("ssd_resets", "Resets, by whether later managers know of them", "recorded", resets)?;
        let seconds = all.iter().map(|ssd| ssd.recovery.seconds).fold(0.0, f64::max);
        let help = "Time that reading the directories has taken after the start";
        page.start("ssd_recovery_seconds", help, MetricType::Gauge, |e| ConstGauge::new(seconds).encode(e))
    }

    fn scrub(&self, page: &mut Page<'_>) -> fmt::Result {
        let scrub = &self.0.status.scrub;
        let help = "Most bytes of memory that are checked in a second; 0: none";
        page.gauge("scrub_rate_bytes_per_second", help, scrub.rate_bytes_per_second)?;
        page.counter("scrub_pages", "Pages in memory that were read again, by shards", scrub.pages)?;
        page.counter("scrub_bytes", "Their payload", scrub.bytes)?;
        page.counter("scrub_bad_pages", "Pages in memory that had changed", scrub.bad_pages)?;
        page.counter("scrub_passes", "Times that all of memory was gone through", scrub.passes)
    }

    fn sessions(&self, page: &mut Page<'_>) -> fmt::Result {
        let (status, tally) = (&self.0.status, &self.0.tally);
        page.gauge("sessions", "Connected sessions", status.sessions.open as u64)?;
        let unfinished = status.sessions.unfinished as u64;
        page.gauge("sessions_unfinished", "Ended sessions whose process may still copy", unfinished)?;
        page.gauge("instances", "Engines with a connected session", status.instances.len() as u64)?;
        page.counter("connections", "Accepted connections", tally.connections)?;
        let closed = tally.closed_by_reason();
        page.counters("connections_closed", "Ended connections, by reason", "reason", closed)
    }

    fn shell(&self, page: &mut Page<'_>) -> fmt::Result {
        let tally = &self.0.tally;
        page.counters("frames_received", "Frames from clients", "kind", tally.received_by_kind())?;
        page.counters("frames_sent", "Frames queued for clients", "kind", tally.sent_by_kind())?;
        page.counter("refusals", "Requests that broke a rule", self.0.counters.refusals)?;
        page.gauge("uptime_seconds", "Seconds since the start", self.0.status.uptime_seconds)?;
        page.histogram("request_handling_seconds", "Time to handle one frame", &tally.handling)
    }
}

/// Shorthands over the encoder.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn start(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        f: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        f(self.0.encode_descriptor(name, help, None, kind)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.start(name, help, MetricType::Gauge, |e| ConstGauge::new(value).encode(e))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.start(name, help, MetricType::Counter, |e| ConstCounter::new(value).encode(e))
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        self.start(name, help, MetricType::Gauge, |mut e| {
            values
                .into_iter()
                .try_for_each(|(of, value)| ConstGauge::new(value).encode(e.encode_family(&[(label, of)])?))
        })
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        self.start(name, help, MetricType::Counter, |mut e| {
            values
                .into_iter()
                .try_for_each(|(of, value)| ConstCounter::new(value).encode(e.encode_family(&[(label, of)])?))
        })
    }

    fn histogram<const N: usize>(&mut self, name: &str, help: &str, histogram: &Histogram<N>) -> fmt::Result {
        self.start(name, help, MetricType::Histogram, |mut e| {
            let buckets = histogram.buckets();
            e.encode_histogram::<NoLabelSet>(
                histogram.sum_micros() as f64 / 1e6,
                histogram.count(),
                &buckets,
                None,
            )
        })
    }
}
