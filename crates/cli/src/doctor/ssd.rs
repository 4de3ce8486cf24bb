//! The directory that `orbitkv run --ssd` would use, and those that a running manager uses.

use super::{Finding, Grade};
use crate::manager::{Room, default_directory};
use crate::status::SsdDirectory;
use bytesize::ByteSize;
use orbitkv_store::HostDirectory;
use orbitkv_uring::{DiskConfig, Engine, PageDisk, PageIo};
use rustix::fs::{Access, access, statfs};
use rustix::process::{Resource, getrlimit};
use std::env;
use std::path::{Path, PathBuf};

/// What a file system is called, and what is wrong with it for a cache. Numbers are those of statfs(2).
const FILE_SYSTEMS: [(u64, &str, Option<&str>); 12] = [
    (0xef53, "ext4", None),
    (0x5846_5342, "xfs", None),
    (0x9123_683e, "btrfs", None),
    (0x2fc1_2fc1, "zfs", None),
    (0xf2f5_2010, "f2fs", None),
    (0xca45_1a4e, "bcachefs", None),
    (0x794c_7630, "overlayfs", Some(SLOW_LAYERS)),
    (0x0102_1994, "tmpfs", Some(MEMORY)),
    (0x8584_58f6, "ramfs", Some(MEMORY)),
    (0x6969, "nfs", Some(NETWORK)),
    (0xff53_4d42, "cifs", Some(NETWORK)),
    (0x6573_5546, "fuse", Some(NETWORK)),
];
const MEMORY: &str = "it is memory: pages there outlive no restart of this machine, and leave less for the pool; \
                      name a directory on an SSD";
const NETWORK: &str = "it may be far away: name a directory on an SSD of this machine";
const SLOW_LAYERS: &str = "it goes with its container: mount a directory of the host to keep pages longer";

/// A directory that was named must work; the default one is only worth a warning: nobody may want it.
pub(super) fn findings(named: Option<&Path>) -> Vec<Finding> {
    let directory = match named {
        Some(path) => path.to_owned(),
        None => match default_directory(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
            Ok(path) => path,
            Err(error) => return vec![Finding::warn(format!("ssd: {error}"), "or do without --ssd")],
        },
    };
    let mut found = look(&directory);
    if named.is_none() && found.grade == Grade::Fail {
        found.grade = Grade::Warn;
    }
    vec![found]
}

fn look(directory: &Path) -> Finding {
    let other = || "name another directory with --ssd=DIR".to_owned();
    let shown = directory.display();
    let at = nearest(directory);
    let made = if at == directory { "" } else { " (made when it is used)" };
    if !at.is_dir() {
        return Finding::fail(format!("ssd: {} is no directory", at.display()), other());
    }
    if let Err(error) = access(&at, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::fail(format!("ssd: {} cannot be written: {error}", at.display()), other());
    }
    let (space, system, io) = match (room(&at), file_system(&at), page_io(&at)) {
        (Ok(space), Ok(system), Ok(io)) => (space, system, io),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => {
            return Finding::fail(format!("ssd: {}: {why}", at.display()), other());
        }
    };
    let what = format!(
        "ssd: {shown}{made}: {}, {} of {} free, {}, memlock {}",
        system.name,
        ByteSize(space.free_bytes).display().iec(),
        ByteSize(space.total_bytes).display().iec(),
        io.what,
        memlock()
    );
    if space.capacity_bytes().is_none() {
        return Finding::fail(
            what,
            "too little is free for a cache: free some space, or name another directory",
        );
    }
    match system.problem.map(str::to_owned).or(io.problem) {
        None => Finding::ok(what),
        Some(problem) => Finding::warn(what, problem),
    }
}

/// The directory, or what will hold it.
fn nearest(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
    absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn room(at: &Path) -> Result<Room, String> {
    Room::of(at).map_err(|error| error.to_string())
}

struct FileSystem {
    name: String,
    problem: Option<&'static str>,
}

fn file_system(at: &Path) -> Result<FileSystem, String> {
    // 32 bits hold every number; the type of the field differs between architectures.
    let magic = statfs(at).map_err(|error| error.to_string())?.f_type as u64 & 0xffff_ffff;
    Ok(match FILE_SYSTEMS.iter().find(|(number, ..)| *number == magic) {
        Some((_, name, problem)) => FileSystem { name: (*name).to_owned(), problem: *problem },
        None => FileSystem { name: format!("file system {magic:#x}"), problem: None },
    })
}

struct Io {
    what: String,
    problem: Option<String>,
}

/// What a manager would find: the disk is set up as it does it, and nothing is read or kept.
fn page_io(at: &Path) -> Result<Io, String> {
    // A link is no cache directory, and may well lead to one.
    let real = std::fs::canonicalize(at).map_err(|error| error.to_string())?;
    let directory = HostDirectory::open_read_only(&real).map_err(|error| error.to_string())?;
    let config = DiskConfig { register: false, ..DiskConfig::default() };
    let disk = PageDisk::open(directory, &config).map_err(|error| error.to_string())?;
    let mode = disk.mode();
    let direct = if mode.direct { "O_DIRECT" } else { "no O_DIRECT" };
    let what = match mode.engine {
        Engine::IoUring => format!("io_uring, {direct}"),
        Engine::Threads => format!("no io_uring, {direct}"),
    };
    let slower = !mode.direct || mode.engine != Engine::IoUring;
    let why = mode.why.clone().unwrap_or_default();
    Ok(Io { what, problem: slower.then(|| format!("works, and costs more of a processor: {why}")) })
}

fn memlock() -> String {
    let limit = getrlimit(Resource::Memlock).current;
    limit.map_or_else(|| "unlimited".to_owned(), |bytes| ByteSize(bytes).display().iec().to_string())
}

/// A directory that a running manager uses.
pub(super) fn of_manager(directory: &SsdDirectory) -> Finding {
    let SsdDirectory { path, state, mode, capacity_bytes, used_bytes, pages } = directory;
    let size = |bytes| ByteSize(bytes).display().iec();
    let what = format!(
        "ssd: {path} is {state}: {} of {} used, {pages} pages, {mode}",
        size(*used_bytes),
        size(*capacity_bytes)
    );
    let fix = match state.as_str() {
        "serving" => return Finding::ok(what),
        "recovering" => {
            return Finding::warn(what, "what earlier runs left is found shortly; until then it is a miss");
        }
        "full" => {
            "free some space on its file system, or lower the capacity; pages are read, none is written"
        }
        "read_only" => {
            "a write failed: look at the kernel's log and the manager's, then start the manager again"
        }
        "off" => {
            "reads fail: look at the kernel's log, check it with `orbitkv verify-ssd`, start the manager again"
        }
        "stuck" => "the disk has not answered for 10 s: look at the kernel's log",
        _ => "the manager's log says why",
    };
    Finding::fail(what, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_to_be_made_is_judged_by_what_will_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        let found = look(&dir.path().join("a/b"));
        assert_ne!(found.grade, Grade::Fail, "{found:?}");
        for part in ["a/b (made when it is used)", "free", "O_DIRECT", "io_uring", "memlock"] {
            assert!(found.what.contains(part), "{part} is not in: {}", found.what);
        }
        assert!(!dir.path().join("a").exists(), "looking makes nothing");
    }

    #[test]
    fn a_file_fails_if_it_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = &findings(Some(&file))[0];
        assert_eq!((found.grade, found.what.contains("is no directory")), (Grade::Fail, true), "{found:?}");
        assert_eq!(look(&file.join("below")).grade, Grade::Fail);
    }

    #[test]
    fn memory_is_no_disk() {
        let found = look(Path::new("/dev/shm"));
        assert!(found.what.contains("tmpfs"), "{found:?}");
        assert!(found.grade != Grade::Ok, "{found:?}");
    }

    #[test]
    fn each_state_of_a_managers_directory_has_its_grade() {
        let directory = |state: &str| SsdDirectory {
            path: "/nvme".to_owned(),
            state: state.to_owned(),
            mode: "io_uring".to_owned(),
            capacity_bytes: 8 << 30,
            used_bytes: 1 << 30,
            pages: 7,
        };
        let grade = |state| of_manager(&directory(state)).grade;
        assert_eq!((grade("serving"), grade("recovering")), (Grade::Ok, Grade::Warn));
        for state in ["full", "read_only", "off", "stuck", "of a newer manager"] {
            assert_eq!(grade(state), Grade::Fail, "{state}");
        }
    }
}
