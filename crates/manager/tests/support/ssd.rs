//! Managers with cache directories of small segments.

use super::{Engine, Manager, page, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Of each segment file: some twenty pages.
pub const SEGMENT_BYTES: u64 = 256 << 10;

/// A cache directory that outlives its managers.
pub struct Cache {
    pub dir: TempDir,
    pub capacity: String,
}

impl Cache {
    pub fn new(capacity: &str) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), capacity: capacity.to_owned() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("ssd")
    }

    pub fn flags(&self) -> Vec<String> {
        let path = self.path().to_str().unwrap().to_owned();
        let words = ["--pool-size", "16mib", "--ssd-min-free", "0", "--ssd-cache-path", &path];
        let sizes = ["--ssd-cache-capacity", &self.capacity, "--ssd-segment-size", "262144"];
        words.iter().chain(&sizes).map(|word| (*word).to_owned()).collect()
    }

    pub fn start(&self) -> Manager {
        self.start_with(&[])
    }

    /// Waits until everything has been found.
    pub fn start_with(&self, more: &[&str]) -> Manager {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let manager = Manager::start_with(&flags);
        wait_for("what earlier runs left", || (ssd(&manager)["recovery"]["finished"] == true).then_some(()));
        manager
    }

    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|e| e == "okv")).collect();
        segments.sort();
        segments
    }

    /// Where the payload of a page begins in the files: its first 64 bytes are unlike any other's.
    pub fn find(&self, block: u64) -> (fs::File, u64) {
        let wanted = &page(block)[..64];
        for path in self.segments() {
            let bytes = fs::read(&path).unwrap();
            if let Some(at) = bytes.windows(64).position(|window| window == wanted) {
                return (fs::OpenOptions::new().write(true).open(path).unwrap(), at as u64);
            }
        }
        panic!("block {block} is in no segment");
    }
}

/// What the file system has given to the files and the directory.
pub fn disk_bytes(path: &Path) -> u64 {
    let bytes = |path: &Path| fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512);
    // Files may go while they are looked at.
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    bytes(path) + entries.map(|entry| bytes(&entry.path())).sum::<u64>()
}

/// Status of the first directory.
pub fn ssd(manager: &Manager) -> Value {
    manager.status()["ssd"][0].clone()
}

/// Pages that can be found in the tier.
pub fn stored(manager: &Manager) -> u64 {
    manager.status()["tier"]["pages"].as_u64().unwrap()
}

/// Empties memory once all that was saved is written and nothing is leased.
pub fn drop_memory(manager: &Manager) {
    wait_for("commits and releases", || (manager.held_bytes() == 0).then_some(()));
    let (code, body) = manager.http("POST", "/cache/memory/drop?wait=1", "Content-Length: 0\r\n");
    assert_eq!(code, 200, "{body}");
    assert_eq!(manager.status()["pool"]["used_bytes"], 0);
}

/// Saves each block as a prefix of its own, so that each may be evicted alone.
pub fn save_each(engine: &mut Engine, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        engine.save_checked(&[block]);
    }
}

/// Asks for each block alone and compares what comes; which of them were there.
pub fn restore_each(engine: &mut Engine, blocks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    blocks
        .into_iter()
        .filter(|block| {
            let (operation, parts) = engine.query(&[*block]);
            if parts.is_empty() {
                return false;
            }
            let pages = engine.restore(operation, &parts);
            assert!(pages == [page(*block)], "block {block} came back as something else");
            true
        })
        .collect()
}

/// A POST for whoever has no manager at hand; the answer is read and not looked at.
pub fn post(http: &str, path: &str) {
    let mut stream = TcpStream::connect(http).unwrap();
    write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}
