//! A real manager in a process of its own, real clients, and pages in it.

use crate::child::{LONG, Process, until};
use crate::memory;
use anyhow::{Context, Result, bail, ensure};
use orbitkv_client::{
    Device, GrantStatus, GroupSpec, Hash, Query, QueryState, Registration, SchedulerClient, SelfTest, Verify,
    WorkerClient, WorkerConfig,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) const POOL_BYTES: u64 = 896 << 20;
/// Small pages, so that the manager's own bytes for each weigh most.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const GROUP: u16 = 0;
/// Chains of pages: all but the last segment's worth of the pool, so that none is evicted.
pub(crate) const CHAINS: usize = 400;
pub(crate) const CHAIN_PAGES: usize = 256;
/// Pages that queries may own at once: few enough that one query can own them all.
pub(crate) const BUDGET_PAGES: usize = 8_192;
/// A page and the header in front of it.
const SLOT_BYTES: usize = PAGE_BYTES + 4096;

/// An engine of one rank.
pub(crate) struct Engine {
    pub(crate) scheduler: SchedulerClient,
    worker: WorkerClient,
}

/// A manager with `CHAINS * CHAIN_PAGES` pages, and the engine that saved them.
pub(crate) struct Cache {
    pub(crate) engine: Engine,
    socket: PathBuf,
    pub(crate) manager: Process,
    pub(crate) dir: TempDir,
}

/// Hashes of the first chains, one after the other.
pub(crate) fn chains(pages: usize) -> Vec<Hash> {
    (0..pages.div_ceil(CHAIN_PAGES)).flat_map(chain).take(pages).collect()
}

/// Hashes of a chain, in prefix order.
pub(crate) fn chain(number: usize) -> Vec<Hash> {
    let hash = |page: usize| {
        let mut hash = [0x5a; 32];
        let name = ((number * CHAIN_PAGES + page) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash[..8].copy_from_slice(&name.to_le_bytes());
        hash
    };
    (0..CHAIN_PAGES).map(hash).collect()
}

fn registration(socket: &Path, instance: &str) -> Registration {
    Registration {
        socket: socket.to_owned(),
        engine: "bench".to_owned(),
        engine_version: env!("CARGO_PKG_VERSION").to_owned(),
        model: "none".to_owned(),
        instance: instance.repeat(32),
        namespace: "c".repeat(64),
        world_size: 1,
        groups: vec![GroupSpec {
            group: GROUP,
            page_bytes: PAGE_BYTES as u64,
            block_tokens: 16,
            shard_count: 1,
            rule: "prefix".to_owned(),
        }],
        hash_tokens: 0,
    }
}

impl Cache {
    pub(crate) fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (socket, ready) = (dir.path().join("manager.sock"), dir.path().join("ready.json"));
        let pool = POOL_BYTES.to_string();
        let budget = (BUDGET_PAGES * SLOT_BYTES).to_string();
        let args: [&OsStr; 13] = [
            "manager".as_ref(),
            "--pool-size".as_ref(),
            pool.as_ref(),
            "--query-budget".as_ref(),
            budget.as_ref(),
            "--socket".as_ref(),
            socket.as_ref(),
            "--ready-file".as_ref(),
            ready.as_ref(),
            "--http-addr".as_ref(),
            "127.0.0.1:0".as_ref(),
            "--log-level".as_ref(),
            "warn".as_ref(),
        ];
        let manager = Process::start(&args, &ready)?;
        let engine = Engine::start(&socket, "b")?;
        for number in 0..CHAINS {
            engine.save(&chain(number)).with_context(|| format!("saving chain {number} of {CHAINS}"))?;
        }
        Ok(Self { engine, socket, manager, dir })
    }

    /// A second engine with the same pages.
    pub(crate) fn another_engine(&self) -> Result<Engine> {
        Engine::start(&self.socket, "d")
    }
}

impl Engine {
    fn start(socket: &Path, instance: &str) -> Result<Self> {
        let worker = WorkerClient::new(WorkerConfig {
            registration: registration(socket, instance),
            rank: 0,
            device: Device::Host,
            layout: memory::layout(CHAIN_PAGES, PAGE_BYTES)?,
            more_layouts: Vec::new(),
            scratch: memory::layout(2, PAGE_BYTES)?,
            layout_probe_passed: true,
            copy_threads: 1,
            verify_restore: Verify::Off,
        })?;
        let scheduler = SchedulerClient::new(&registration(socket, instance))?;
        until("hits and saves are on", || match worker.self_test() {
            SelfTest::Failed(why) => bail!("self-test: {why}"),
            _ => Ok(scheduler.active()),
        })?;
        Ok(Self { scheduler, worker })
    }

    /// Asks, and waits for the lease of all pages.
    pub(crate) fn ask(&self, hashes: &[Hash]) -> Result<Query> {
        let query = self.scheduler.query(GROUP, hashes, 0)?;
        let state = query.wait(LONG);
        ensure!(
            state == QueryState::Ready && query.pages() == hashes.len(),
            "{} of {} pages answered, {state:?}, {:?}",
            query.pages(),
            hashes.len(),
            query.miss_reason()
        );
        Ok(query)
    }

    /// Copies what is granted of a chain, once.
    pub(crate) fn write(&self, hashes: &[Hash]) -> Result<()> {
        let reservation = self.scheduler.reserve(GROUP, None, 0, hashes)?;
        until("an answer to a reservation", || Ok(reservation.poll()))?;
        let statuses = reservation.statuses();
        ensure!(!statuses.contains(&GrantStatus::Refused), "the pool has no room");
        let is_granted = |i: &usize| statuses.get(*i) == Some(&GrantStatus::Slots);
        let granted: Vec<usize> = (0..statuses.len()).filter(is_granted).collect();
        if !granted.is_empty() {
            let blocks = granted.iter().map(|i| u32::try_from(*i)).collect::<Result<Vec<_>, _>>()?;
            let save = self.worker.save(&reservation.ticket(&granted)?.encode(), &blocks)?;
            ensure!(save.wait(LONG), "a save does not end");
        }
        Ok(())
    }

    /// Saves a chain until all of it is found: the pool grows meanwhile, and commits arrive behind copies.
    pub(crate) fn save(&self, hashes: &[Hash]) -> Result<()> {
        until("all pages of a chain are saved", || {
            self.write(hashes)?;
            let found = self.scheduler.query(GROUP, hashes, 0)?;
            Ok(found.wait(LONG) == QueryState::Ready && found.pages() == hashes.len())
        })
    }
}
