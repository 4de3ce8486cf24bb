//! What a directory shows before it is trusted with pages.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, HostDirectory};
use orbitkv_uring::{DiskConfig, DiskEngine, Engine, OpenError, PageDisk, PageIo};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::{
    BLOCK, assert_success, cached_blocks, cannot, config, contents, forbid, heap, in_child, in_memory, may,
    on_disk, one, open, pattern, request, role, takes_direct,
};

const ENGINES: [DiskEngine; 2] = [DiskEngine::IoUring, DiskEngine::Threads];
const PAGES: usize = 32;
const PAGE: usize = 16 * BLOCK;

/// Writes pages and reads them back; which part of the file is in the page cache then, in blocks.
fn pages_and_cached_blocks(disk: &mut PageDisk, dir: &Path) -> (usize, usize) {
    let file = disk.create("segment", (PAGES * PAGE) as u64).unwrap();
    let at = |page| page * PAGE / BLOCK;
    for page in 0..PAGES {
        let bytes = heap(&pattern(page as u64, PAGE));
        one(disk, request(1, Direction::Write, file, at(page), bytes)).result.unwrap();
    }
    for page in 0..PAGES {
        let read = one(disk, request(2, Direction::Read, file, at(page), heap(&vec![0; PAGE])));
        read.result.unwrap();
        assert!(contents(&read.buffer) == pattern(page as u64, PAGE));
    }
    let cached = cached_blocks(&dir.join("segment"));
    disk.close(file);
    disk.remove("segment").unwrap();
    (PAGES * PAGE / BLOCK, cached)
}

#[test]
fn case_a46_what_goes_past_the_page_cache_leaves_nothing_in_it() {
    for engine in ENGINES {
        let dir = on_disk();
        if !takes_direct(dir.path()) {
            return cannot("O_DIRECT, which the file system of the build directory refuses");
        }
        let mut disk = open(dir.path(), &config(engine));
        assert!(disk.mode().direct && disk.mode().to_string().contains("O_DIRECT"), "{}", disk.mode());
        assert_eq!(pages_and_cached_blocks(&mut disk, dir.path()).1, 0, "{engine:?}");
        // Control: otherwise all of it is there, and the mode says so.
        let mut disk = open(dir.path(), &DiskConfig { direct: false, ..config(engine) });
        assert!(disk.mode().to_string().contains("through the page cache"), "{}", disk.mode());
        let (all, cached) = pages_and_cached_blocks(&mut disk, dir.path());
        assert_eq!(cached, all, "{engine:?}");
    }
}

/// In a file system that takes the flag, and the bytes into the page cache all the same.
fn uses_the_cache_and_says_so(dir: &Path) {
    for engine in ENGINES {
        let mut disk = open(dir, &config(engine));
        let (all, cached) = pages_and_cached_blocks(&mut disk, dir);
        assert_eq!(cached, all, "control: it does use the cache");
        let why = disk.mode().why.clone().unwrap_or_default();
        let said = why.contains("uses the page cache all the same") || why.contains("refuses O_DIRECT");
        assert!(!disk.mode().direct && said && why.contains(dir.to_str().unwrap()), "{}", disk.mode());
    }
}

#[test]
fn case_a46_direct_io_that_is_not_is_called_so() {
    if let Some((_, dir)) = role() {
        let image = dir.with_extension("image");
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        };
        let (image, dir_text) = (image.to_str().unwrap(), dir.to_str().unwrap());
        run("mkfs.ext4", &["-q", image]);
        // With its data in the journal it has no direct I/O, and refuses nothing.
        run("mount", &["-o", "loop,data=journal", image, dir_text]);
        uses_the_cache_and_says_so(&dir);
        return run("umount", &[dir_text]);
    }
    if let Some(dir) = in_memory() {
        uses_the_cache_and_says_so(dir.path());
    }
    // Loop devices are root's, so this one is extra.
    if may(&["unshare", "--mount", "losetup", "--find"]) && may(&["mkfs.ext4", "-V"]) {
        let base = on_disk();
        let dir = base.path().join("mounted");
        std::fs::create_dir(&dir).unwrap();
        let test = "case_a46_direct_io_that_is_not_is_called_so";
        assert_success(&in_child(&["unshare", "--mount"], test, "ext4", &dir));
    } else {
        eprintln!("not tested: ext4 with data=journal, this user has no loop devices");
    }
}

/// Opens a disk where a system call fails.
fn open_without(
    call: libc::c_long,
    errno: i32,
    config: DiskConfig,
) -> Result<(PageDisk, tempfile::TempDir), OpenError> {
    let opened = std::thread::spawn(move || {
        let dir = on_disk();
        forbid(call, errno);
        PageDisk::open(HostDirectory::open(dir.path()).unwrap(), &config).map(|disk| (disk, dir))
    });
    opened.join().unwrap()
}

#[test]
fn case_a52_a_directory_that_cannot_be_read_is_refused_at_start() {
    for (call, word) in [(libc::SYS_pread64, "read"), (libc::SYS_pwrite64, "write")] {
        let Err(error) = open_without(call, libc::EIO, config(DiskEngine::Threads)) else {
            panic!("it was opened, and {word} fails");
        };
        let text = error.to_string();
        assert!(matches!(error, OpenError::SelfTest { .. }), "{text}");
        assert!(text.contains(&format!("cannot {word} a page: I/O error 5")), "{text}");
        assert!(text.contains("give it another directory"), "{text}");
    }
    // Control: where another call fails it is opened, and nothing of the test is left behind.
    let (_disk, dir) = open_without(libc::SYS_sync, libc::EIO, config(DiskEngine::Threads)).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn case_a52_where_io_uring_does_not_answer_threads_take_over() {
    let hasty = DiskConfig { self_test_wait: Duration::from_millis(200), ..config(DiskEngine::Auto) };
    let (mut disk, dir) = open_without(libc::SYS_io_uring_enter, libc::EPERM, hasty.clone()).unwrap();
    assert_eq!((disk.mode().engine, disk.mode().registered), (Engine::Threads, false), "{}", disk.mode());
    let why = disk.mode().why.clone().unwrap();
    assert!(why.contains("io_uring failed its self-test: no answer for 200ms"), "{why}");
    pages_and_cached_blocks(&mut disk, dir.path());
    let strict = DiskConfig { engine: DiskEngine::IoUring, drop_wait: Duration::ZERO, ..hasty };
    let error = open_without(libc::SYS_io_uring_enter, libc::EPERM, strict).unwrap_err();
    assert!(error.to_string().contains("no answer for 200ms"), "{error}");
}
