//! Every file of the committed corpora, and small changes of it, on the stable compiler.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "tests")]

use orbitkv_core::Mark;
use orbitkv_fuzz::{TARGETS, allocated_bytes, marks_of_steps};
use orbitkv_wire::{Kind, ToClient, ToManager};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Changes of each file that are tried.
const CHANGES: u64 = 200;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// The files of one corpus. An empty corpus would test nothing.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = corpora().join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn body(target: &str) -> fn(&[u8]) {
    TARGETS.iter().find(|t| t.name == target).unwrap().body
}

fn replay(target: &str) {
    let body = body(target);
    for (path, bytes) in corpus(target) {
        let done = catch_unwind(AssertUnwindSafe(|| body(&bytes)));
        assert!(done.is_ok(), "{} is a finding again", path.display());
    }
}

/// xorshift64*: the same changes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }

    /// One to four changes: a bit, a byte, a cut, a repeat, or the tail of another file.
    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = [0, 1, 127, 128, 254, 255][self.below(6)],
                2 => bytes.truncate(at),
                3 => {
                    let again = bytes[at..].to_vec();
                    bytes.extend_from_slice(&again[..again.len().min(64)]);
                }
                _ => {
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
            }
        }
    }
}

fn replay_changed(target: &str) {
    let (body, files) = (body(target), corpus(target));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (path, file) in &files {
        for _ in 0..CHANGES {
            let mut bytes = file.clone();
            let other = random.below(files.len());
            random.change(&mut bytes, &files[other].1);
            let done = catch_unwind(AssertUnwindSafe(|| body(&bytes)));
            assert!(done.is_ok(), "changed from {}: {bytes:?}", path.display());
        }
    }
}

macro_rules! targets {
    ($($name:ident),+) => {
        $(mod $name {
            #[test]
            fn corpus_holds() {
                super::replay(stringify!($name));
            }

            #[test]
            fn changed_corpus_holds() {
                super::replay_changed(stringify!($name));
            }
        })+

        #[test]
        fn every_target_is_replayed_and_has_a_fuzzer() {
            let replayed = [$(stringify!($name)),+];
            assert_eq!(replayed, TARGETS.map(|target| target.name));
            let manifest = fs::read_to_string(corpora().join("../Cargo.toml")).unwrap();
            for name in replayed {
                assert!(manifest.contains(&format!("name = \"{name}\"")), "no [[bin]] for {name}");
                let path = corpora().join(format!("../fuzz_targets/{name}.rs"));
                let source = fs::read_to_string(&path).unwrap();
                assert!(source.contains(&format!("orbitkv_fuzz::{name}")), "{}", path.display());
            }
        }
    };
}

targets!(to_manager, to_client, frames, tickets, steps, segments);

/// Kinds of which the corpus has a payload that decodes.
fn kinds(target: &str, decodes: impl Fn(Kind, &[u8]) -> bool) -> BTreeSet<u16> {
    let files = corpus(target).into_iter().filter_map(|(_, bytes)| {
        let (number, payload) = bytes.split_first_chunk::<2>()?;
        let kind = Kind::from_u16(u16::from_le_bytes(*number)).ok()?;
        decodes(kind, payload).then_some(kind as u16)
    });
    files.collect()
}

#[test]
fn every_kind_is_in_a_corpus() {
    let mut found = kinds("to_manager", |kind, payload| ToManager::decode(kind, payload).is_ok());
    found.extend(kinds("to_client", |kind, payload| ToClient::decode(kind, payload).is_ok()));
    let all: BTreeSet<u16> = Kind::ALL.iter().map(|kind| *kind as u16).collect();
    assert_eq!(found, all, "run the example `seeds`");
}

#[test]
fn the_corpus_of_steps_goes_everywhere() {
    let files = corpus("steps");
    let reached: HashSet<Mark> = files.iter().flat_map(|(_, bytes)| marks_of_steps(bytes)).collect();
    let missing: Vec<_> = Mark::ALL.iter().filter(|mark| !reached.contains(mark)).collect();
    assert!(missing.is_empty(), "no file reaches {missing:?}");
}

#[test]
fn corpora_stay_small() {
    let sizes: Vec<usize> =
        TARGETS.iter().flat_map(|target| corpus(target.name)).map(|(_, bytes)| bytes.len()).collect();
    // A story for each coverage mark of the core, or nearly, and one for each way a message can be wrong.
    assert!(sizes.len() <= 260, "{} files; minimise with `cargo fuzz cmin`", sizes.len());
    let bytes: usize = sizes.iter().sum();
    assert!(bytes <= 300 << 10, "{bytes} bytes; minimise with `cargo fuzz cmin`");
}

#[test]
fn the_meter_counts() {
    let (bytes, counted) = allocated_bytes(|| vec![7_u8; 1000]);
    assert_eq!((bytes.len(), counted), (1000, 1000));
    assert_eq!(allocated_bytes(|| bytes.len()).1, 0);
}
