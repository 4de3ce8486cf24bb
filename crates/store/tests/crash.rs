//! Random histories on the simulated disk, cut by crashes: what comes back is whole, is ours, was not evicted
//! before, and nothing is missing that had reached the disk.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::sim::{Faults, Rng, SimDisk};
use orbitkv_store::{AppendError, Completion, Disk, Extent, Log, PageName, PageRecord, Source, StoredPage};
use std::collections::{BTreeMap, BTreeSet};
use support::{config, expected, page, payload, read, submit_write, verify};

/// Crash points of each of the two tests.
const CRASHES: u64 = 51_000;
const EPOCHS: u64 = 20;

/// A page at one point of its life.
type Version = (PageName, u64);

/// What must be seen at least once, or the histories are too tame.
#[derive(Debug, Default)]
struct Seen {
    crashes: u64,
    from_footers: u64,
    from_headers: u64,
    torn: u64,
    durable: u64,
    evicted: u64,
    moved: u64,
    reused: u64,
    refused: u64,
    lost_checkpoints: u64,
}

/// A write under way, and the page that it moves.
#[derive(Debug)]
struct Pending {
    stored: StoredPage,
    old: Option<Extent>,
}

struct World {
    log: Log<SimDisk>,
    rng: Rng,
    faulty: bool,
    next_number: u64,
    next_token: u64,
    pending: BTreeMap<u64, Pending>,
    /// By checksum: every page ever placed.
    placed: BTreeMap<u64, (u64, PageRecord)>,
    /// Written, and not reported lost.
    index: BTreeMap<Extent, StoredPage>,
    /// Written before the disk settled: a crash must not lose these.
    durable: BTreeSet<Version>,
    /// Reported lost before the disk settled: a crash must not bring these back.
    gone: BTreeSet<Version>,
    lost: BTreeSet<Version>,
    /// Reported lost, by segments from which pages are still being moved.
    leaving: BTreeSet<Version>,
}

fn version(stored: &StoredPage) -> Version {
    (stored.page.name, stored.sequence)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(1 << 30, rng.next_u64());
        let faulty = rng.chance(40);
        let log = Log::open(disk, config(3 + seed % 4)).unwrap();
        Self {
            log,
            rng,
            faulty,
            next_number: 0,
            next_token: 0,
            pending: BTreeMap::new(),
            placed: BTreeMap::new(),
            index: BTreeMap::new(),
            durable: BTreeSet::new(),
            gone: BTreeSet::new(),
            lost: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }

    fn run_epoch(&mut self, seen: &mut Seen) {
        let write_errors = if self.faulty { self.rng.below(4) } else { 0 };
        let faults = Faults {
            write_errors,
            full: write_errors,
            file_write_errors: write_errors,
            slow_polls: self.rng.below(4),
            ..Faults::default()
        };
        self.log.disk_mut().set_faults(faults);
        for _ in 0..self.rng.below(48) {
            match self.rng.below(100) {
                0..55 => self.append(seen),
                55..85 => self.poll(seen),
                85..90 => self.erase(),
                90..95 => self.settle(),
                95..97 => self.log.resume(true),
                _ => self.evict(seen),
            }
            if self.log.wants_eviction().unwrap() {
                self.evict(seen);
            }
        }
    }

    fn append(&mut self, seen: &mut Seen) {
        // Now and then a page that is there already.
        let number =
            if self.rng.chance(10) { self.rng.below(self.next_number + 1) } else { self.next_number };
        self.next_number = self.next_number.max(number + 1);
        let page = page(number);
        match self.log.append(&page) {
            Ok(at) => self.begin(number, page, &at, None),
            Err(AppendError::NoRoom) => seen.refused += 1,
            Err(AppendError::ReadOnly | AppendError::Store(_)) => assert!(self.faulty),
            Err(other) => panic!("{other}"),
        }
    }

    fn begin(&mut self, number: u64, page: PageRecord, at: &orbitkv_store::Placement, old: Option<Extent>) {
        // Where the log says the sequence is, a reader in any language finds it.
        let sequence = u64::from_le_bytes(at.header[24..32].try_into().unwrap());
        self.placed.insert(page.payload_crc, (number, page));
        self.next_token += 1;
        let stored = StoredPage { page, extent: at.extent, sequence };
        self.pending.insert(self.next_token, Pending { stored, old });
        submit_write(&mut self.log, self.next_token, at, &payload(number, page.payload_bytes));
        if self.log.disk_mut().in_flight() > 60 {
            self.poll(&mut Seen::default());
        }
    }

    fn poll(&mut self, seen: &mut Seen) {
        let mut done = Vec::new();
        self.log.disk_mut().poll(&mut done);
        for completion in done {
            self.ended(&completion, seen);
        }
    }

    fn ended(&mut self, completion: &Completion<Vec<u8>>, seen: &mut Seen) {
        let Pending { stored, old } = self.pending.remove(&completion.token).unwrap();
        let good = completion.result.is_ok();
        let sealed = self.log.written(stored.extent, &completion.result);
        assert!(sealed.is_ok() || self.faulty, "{sealed:?}");
        if good {
            self.index.insert(stored.extent, stored);
        }
        if let Some(old) = old {
            seen.moved += u64::from(good);
            self.let_go(old);
        }
    }

    fn let_go(&mut self, old: Extent) {
        self.forget(old);
        match self.log.let_go(old) {
            Ok(()) if self.log.locate(old, 1).is_err() => self.freed(),
            Ok(()) => {}
            Err(_) => self.leaving.clear(),
        }
    }

    /// A log that is read-only writes nothing, so that a restart finds the segment again.
    fn freed(&mut self) {
        if self.log.usage().unwrap().read_only {
            self.leaving.clear();
        }
        self.lost.append(&mut self.leaving);
    }

    /// Of one segment at a time.
    fn forget(&mut self, extent: Extent) {
        if let Some(stored) = self.index.remove(&extent) {
            self.durable.remove(&version(&stored));
            self.leaving.insert(version(&stored));
        }
    }

    fn erase(&mut self) {
        let at = self.rng.below(self.index.len() as u64) as usize;
        if let Some(extent) = self.index.keys().nth(at).copied() {
            let stored = self.index.remove(&extent).unwrap();
            self.durable.remove(&version(&stored));
            self.log.erase(extent);
        }
    }

    fn settle(&mut self) {
        self.log.disk_mut().settle();
        self.durable.extend(self.index.values().map(version));
        self.gone.append(&mut self.lost);
    }

    fn evict(&mut self, seen: &mut Seen) {
        let hot = self.rng.below(3);
        let Some(eviction) = self.log.evict(|stored| stored.sequence % 3 < hot) else { return };
        assert!(eviction.unrecorded.is_none() || self.faulty, "{eviction:?}");
        seen.evicted += 1;
        for stored in &eviction.lost {
            self.forget(stored.extent);
        }
        if eviction.unrecorded.is_some() {
            self.leaving.clear();
        } else if eviction.hot.is_empty() {
            self.freed();
        }
        for stored in eviction.hot {
            self.move_page(&stored);
        }
        assert!(self.index.values().all(|stored| self.log.locate(stored.extent, 1).is_ok()));
    }

    fn move_page(&mut self, stored: &StoredPage) {
        let at = self.log.locate(stored.extent, stored.page.payload_bytes).unwrap();
        self.log.disk_mut().submit(support::read_request(0, at)).unwrap();
        let mut done = Vec::new();
        while !done.iter().any(|completion: &Completion<_>| completion.token == 0) {
            self.log.disk_mut().poll(&mut done);
        }
        let mut bytes = Vec::new();
        for completion in done {
            if completion.token == 0 {
                completion.result.unwrap();
                bytes = completion.buffer;
                continue;
            }
            self.ended(&completion, &mut Seen::default());
        }
        let whole = verify(&self.log, stored.extent, &expected(&stored.page), &bytes).is_ok();
        let placed = if whole { self.log.append_again(stored.extent, &stored.page).ok() } else { None };
        match placed {
            Some(at) => {
                self.begin(self.placed[&stored.page.payload_crc].0, stored.page, &at, Some(stored.extent));
            }
            None => {
                self.let_go(stored.extent);
            }
        }
    }

    /// The power fails; sometimes again while the directory is being read.
    fn crash(mut self, seen: &mut Seen, capacity: u64) -> Self {
        let mut disk =
            std::mem::replace(&mut self.log, Log::open(SimDisk::new(1 << 20, 0), config(3)).unwrap())
                .into_disk()
                .crash();
        loop {
            seen.crashes += 1;
            if disk.contents("checkpoint").is_some_and(|bytes| bytes[..8] != *b"OKVCKPT\0") {
                seen.lost_checkpoints += 1;
            }
            let mut log = Log::open(disk, config(capacity)).unwrap();
            if self.rng.chance(10) {
                let _first = log.recover();
                disk = log.into_disk().crash();
                continue;
            }
            self.log = log;
            break;
        }
        self.pending.clear();
        self.lost.clear();
        self.leaving.clear();
        let recovered = self.recover(seen);
        self.examine(&recovered, seen);
        self
    }

    fn recover(&mut self, seen: &mut Seen) -> Vec<StoredPage> {
        let mut pages = Vec::new();
        while let Some(recovered) = self.log.recover() {
            match recovered.source {
                Source::Footer => seen.from_footers += 1,
                Source::Headers => seen.from_headers += 1,
                Source::Nothing => seen.reused += 1,
            }
            pages.extend(recovered.pages);
        }
        pages
    }

    fn examine(&mut self, recovered: &[StoredPage], seen: &mut Seen) {
        self.index.clear();
        let mut missing = std::mem::take(&mut self.durable);
        for stored in recovered {
            let (number, page) =
                *self.placed.get(&stored.page.payload_crc).expect("a page that was never placed");
            assert_eq!(stored.page, page, "a record that was never placed");
            assert!(!self.gone.contains(&version(stored)), "{stored:?} was evicted before the disk settled");
            match read(&mut self.log, stored.extent, &expected(&stored.page)) {
                Ok(bytes) => {
                    assert!(
                        bytes == payload(number, stored.page.payload_bytes),
                        "torn or foreign: {stored:?}"
                    );
                    self.index.insert(stored.extent, *stored);
                    if missing.remove(&version(stored)) {
                        seen.durable += 1;
                    }
                    self.durable.insert(version(stored));
                }
                Err(_) => {
                    seen.torn += 1;
                    self.log.erase(stored.extent);
                }
            }
        }
        assert!(missing.is_empty(), "lost although it had reached the disk: {missing:?}");
    }
}

fn run(first_seed: u64) {
    let mut seen = Seen::default();
    let mut seed = first_seed;
    while seen.crashes < CRASHES {
        let mut world = World::new(seed);
        for epoch in 0..EPOCHS {
            world.run_epoch(&mut seen);
            world = world.crash(&mut seen, 3 + seed % 4);
            assert!(
                world.log.disk_mut().peak_bytes() <= config(3 + seed % 4).capacity_bytes,
                "seed {seed} epoch {epoch}"
            );
        }
        seed += 1;
    }
    println!("{seen:?}");
    let Seen {
        crashes,
        from_footers,
        from_headers,
        torn,
        durable,
        evicted,
        moved,
        reused,
        refused,
        lost_checkpoints,
    } = seen;
    for (what, count) in [
        ("crashes", crashes),
        ("from footers", from_footers),
        ("from headers", from_headers),
        ("torn", torn),
        ("durable", durable),
        ("evicted", evicted),
        ("moved", moved),
        ("reused", reused),
        ("refused", refused),
        ("lost checkpoints", lost_checkpoints),
    ] {
        assert!(count > crashes / 1000, "the histories are too tame: {what} {count} times");
    }
}

#[test]
fn crashes_with_even_seeds() {
    run(0);
}

#[test]
fn crashes_with_other_seeds() {
    run(1 << 32);
}
