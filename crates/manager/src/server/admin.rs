//! Answers to the HTTP thread.

use super::Server;
use crate::admin::{AdminRequest, Dropped};
use crate::snapshot::{
    LoadStatus, PoolStatus, QueryStatus, SaveStatus, ScrubStatus, SessionStatus, Snapshot, Status, TierStatus,
};
use crate::tier::Tier;
use orbitkv_core::{Account, Event, Phase, ScrubCounters};

impl Server {
    pub(super) fn take_admin(&mut self) {
        // At most what is there now: a flood of requests cannot hold the core thread.
        for _ in 0..64 {
            let Ok(request) = self.admin.try_recv() else { return };
            // A receiver that is gone has given up.
            match request {
                AdminRequest::Health(answer) => {
                    let _ = answer.send(self.drain_until.is_none());
                }
                AdminRequest::Snapshot(answer) => {
                    let _ = answer.send(self.snapshot());
                }
                AdminRequest::DropMemory { when_written, answer } => {
                    let pending = self.tier.as_ref().map_or(0, Tier::writing_bytes);
                    let dropped = if when_written && pending > 0 {
                        Dropped::Pending(pending)
                    } else {
                        let before = self.core.counters().dropped_pages;
                        self.feed(Event::DropUnleased);
                        Dropped::Pages(self.core.counters().dropped_pages - before)
                    };
                    let _ = answer.send(dropped);
                }
            }
        }
        self.waker.wake();
    }

    fn snapshot(&self) -> Snapshot {
        let core = &self.core;
        let status = Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            boot: format!("{:032x}", self.boot),
            uptime_seconds: self.clock.now().0 / 1_000_000,
            draining: self.drain_until.is_some(),
            socket: self.claim.path().display().to_string(),
            http: self.http.map(|address| address.to_string()),
            pool: PoolStatus {
                limit_bytes: core.config().pool_bytes,
                bytes: core.pool_bytes(),
                used_bytes: core.used_bytes(),
                quarantined_bytes: core.quarantined_bytes(),
                huge_page_bytes: self.pool.huge_page_bytes(),
                segments: core.segments(),
                pages: core.sealed_pages(),
            },
            query: self.query_status(),
            save: SaveStatus { reservations: core.saves(), inflight_bytes: core.filling_bytes() },
            load: LoadStatus {
                inflight_bytes: core.ledger().account_bytes(Account::Restoring),
                verifying_workers: self.sessions.verifying(),
            },
            tier: self.tier.as_ref().map(|tier| {
                let (write_queue_pending, read_queue_pending) = core.tier_inflight();
                let (kind, pages) = (tier.name(), core.stored_pages());
                TierStatus { kind, pages, write_queue_pending, read_queue_pending }
            }),
            ssd: self.tier.as_ref().map_or_else(Vec::new, Tier::status),
            scrub: self.scrub_status(),
            sessions: SessionStatus {
                open: self.sessions.open(),
                unfinished: core.sessions().saturating_sub(self.sessions.open()),
            },
            instances: self.sessions.instances(),
            counters: core.counters().into(),
        };
        Snapshot {
            status,
            tally: self.tally.clone(),
            counters: *core.counters(),
            budget_wait: core.budget_wait().clone(),
        }
    }

    fn scrub_status(&self) -> ScrubStatus {
        let ScrubCounters { pages, bytes, bad_pages, passes } = self.core.counters().scrub;
        let rate_bytes_per_second = self.scrub_rate.map_or(0, |rate| rate.bytes_in(1_000_000));
        ScrubStatus { rate_bytes_per_second, pages, bytes, bad_pages, passes }
    }

    fn query_status(&self) -> QueryStatus {
        let (core, ledger) = (&self.core, self.core.ledger());
        let leased = |phase| matches!(phase, Phase::Ready | Phase::Restoring);
        let leases = || core.operations().filter(|op| leased(op.phase)).map(|op| op.ticket);
        let oldest =
            self.leases.oldest(leases()).map(|since| self.clock.now().0.saturating_sub(since.0) as f64 / 1e6);
        QueryStatus {
            budget_bytes: ledger.budget_bytes(),
            instance_budget_bytes: core.config().query_instance_budget_bytes,
            reserved_bytes: ledger.reserved_bytes(),
            peak_reserved_bytes: ledger.peak_bytes(),
            speculative_reserved_bytes: ledger.speculative_bytes(),
            peak_speculative_reserved_bytes: ledger.speculative_peak_bytes(),
            reserved_bytes_by_phase: Account::ALL.map(|a| (a.name(), ledger.account_bytes(a))).into(),
            operations: Phase::ALL.map(|phase| (phase.name(), core.operations_in(phase))).into(),
            leases: leases().count(),
            oldest_lease_seconds: oldest,
        }
    }
}
