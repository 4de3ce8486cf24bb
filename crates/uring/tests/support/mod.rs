//! Directories, disks and memory for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use orbitkv_shm::{Region, Segment};
use orbitkv_store::{Completion, Direction, Disk, FileId, HostDirectory, Priority, Request};
use orbitkv_uring::{DiskConfig, DiskEngine, IoBuffer, PageDisk, PageIo};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// With this set, what the host cannot do is passed over.
pub(crate) const ALLOW_SKIPS: &str = "ORBITKV_TEST_ALLOW_SKIPS";
pub(crate) const BLOCK: usize = 4096;

/// A test that cannot be made here: fails, unless whoever runs it has agreed.
pub(crate) fn cannot(what: &str) {
    assert!(
        std::env::var_os(ALLOW_SKIPS).is_some(),
        "this host cannot test {what}; with {ALLOW_SKIPS}=1 that is passed over"
    );
    eprintln!("not tested: {what}");
}

/// A directory of the file system that the build is on.
pub(crate) fn on_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A directory in memory.
pub(crate) fn in_memory() -> Option<TempDir> {
    let dir = tempfile::tempdir_in("/dev/shm").ok();
    if dir.is_none() {
        cannot("tmpfs, there is no /dev/shm");
    }
    dir
}

/// Whether O_DIRECT works there, found out without the crate.
pub(crate) fn takes_direct(dir: &Path) -> bool {
    const O_DIRECT: i32 = 0o40000;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(O_DIRECT).open(dir.join("probe")).is_ok_and(
        |_| {
            std::fs::remove_file(dir.join("probe")).unwrap();
            true
        },
    )
}

pub(crate) fn config(engine: DiskEngine) -> DiskConfig {
    DiskConfig { engine, threads: 4, ..DiskConfig::default() }
}

pub(crate) fn open(dir: &Path, config: &DiskConfig) -> PageDisk {
    PageDisk::open(HostDirectory::open(dir).unwrap(), config).unwrap()
}

pub(crate) fn segment(bytes: usize) -> Segment {
    let segment = Segment::create("test", bytes).unwrap();
    segment.populate(2).unwrap();
    segment
}

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let words =
        (0..(bytes / 8) as u64).map(|at| (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn pool(region: &Arc<Region>, block: usize, bytes: &[u8]) -> IoBuffer {
    let mut buffer = IoBuffer::pool(region, block * BLOCK, bytes.len()).unwrap();
    buffer.write_at(0, bytes).unwrap();
    buffer
}

pub(crate) fn heap(bytes: &[u8]) -> IoBuffer {
    let mut buffer = IoBuffer::heap(bytes.len()).unwrap();
    buffer.write_at(0, bytes).unwrap();
    buffer
}

pub(crate) fn contents(buffer: &IoBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read_at(0, &mut bytes).unwrap();
    bytes
}

/// All of a buffer, at a block of a file.
pub(crate) fn request(
    token: u64,
    direction: Direction,
    file: FileId,
    block: usize,
    buffer: IoBuffer,
) -> Request<IoBuffer> {
    let (offset, bytes) = ((block * BLOCK) as u64, u32::try_from(buffer.len()).unwrap());
    Request { token, direction, priority: Priority::Demand, file, offset, bytes, buffer }
}

pub(crate) fn submit<D: Disk<Buffer = IoBuffer>>(disk: &mut D, request: Request<IoBuffer>) {
    if let Err(rejected) = disk.submit(request) {
        panic!("refused: {}", rejected.reason);
    }
}

/// Waits for so many ends, as an I/O thread does. A minute is a hang.
pub(crate) fn wait<D: PageIo>(disk: &mut D, count: usize) -> Vec<Completion<IoBuffer>> {
    let (mut done, start) = (Vec::new(), Instant::now());
    while done.len() < count {
        assert!(start.elapsed() < Duration::from_secs(60), "{} of {count} have ended", done.len());
        disk.wait(Some(Duration::from_secs(1))).unwrap();
        disk.poll(&mut done);
    }
    done
}

pub(crate) fn one<D: PageIo>(disk: &mut D, request: Request<IoBuffer>) -> Completion<IoBuffer> {
    submit(disk, request);
    wait(disk, 1).remove(0)
}

/// Runs a test of this binary in a process of its own, which finds `role` in the environment.
pub(crate) fn in_child(prefix: &[&str], test: &str, role: &str, dir: &Path) -> Output {
    let this: PathBuf = std::env::current_exe().unwrap();
    let words: Vec<_> = prefix.iter().map(|word| (*word).to_owned()).collect();
    let line = [words, vec![this.display().to_string()]].concat();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).args(["--exact", test, "--nocapture"]).env(ROLE, role).env(DIR, dir);
    command.output().unwrap()
}

const ROLE: &str = "ORBITKV_TEST_ROLE";
const DIR: &str = "ORBITKV_TEST_DIR";

/// What a child is to do, and where.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIR)?.into()))
}

pub(crate) fn assert_success(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A name that matches no test would be a success as well.
    let ran = output.status.success() && out.contains("1 passed");
    assert!(ran, "{}\n{out}\n{err}", output.status);
}
