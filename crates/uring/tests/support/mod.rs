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

/// Whether O_DIRECT goes past the page cache there, found out without the crate.
pub(crate) fn takes_direct(dir: &Path) -> bool {
    const O_DIRECT: i32 = 0o40000;
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    // It has nothing but the page cache, and takes the flag in newer kernels.
    if rustix::fs::statfs(dir).unwrap().f_type as i64 == TMPFS_MAGIC {
        return false;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(O_DIRECT).open(dir.join("probe")).is_ok_and(
        |_| {
            std::fs::remove_file(dir.join("probe")).unwrap();
            true
        },
    )
}

/// From now on this thread, and those that it starts, get that error for that system call.
pub(crate) fn forbid(call: libc::c_long, errno: i32) {
    let word = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call is the first word of what a filter sees.
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        word(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::try_from(call).unwrap(), 0, 1),
        word(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        word(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers; the thread can only lose rights.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live during the call, which copies them.
    let installed =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, std::ptr::from_ref(&program)) };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

/// Whether this user may run that.
pub(crate) fn may(arguments: &[&str]) -> bool {
    Command::new(arguments[0]).args(&arguments[1..]).output().is_ok_and(|output| output.status.success())
}

/// Blocks of a file that are in the page cache.
pub(crate) fn cached_blocks(path: &Path) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let flags = rustix::mm::MapFlags::SHARED;
    // SAFETY: a new mapping, through which nothing is read.
    let start = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes, rustix::mm::ProtFlags::READ, flags, &file, 0).unwrap()
    };
    let mut resident = vec![0u8; bytes.div_ceil(BLOCK)];
    // SAFETY: the mapping above, with a byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(start, bytes, resident.as_mut_ptr()) }, 0);
    // SAFETY: it is ours alone, and not used any more.
    unsafe { rustix::mm::munmap(start, bytes) }.unwrap();
    resident.iter().filter(|byte| *byte & 1 == 1).count()
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
