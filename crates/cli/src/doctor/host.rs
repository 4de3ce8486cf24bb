//! The kernel and its limits.

use super::Finding;
use crate::manager::Endpoint;
use bytesize::ByteSize;
use orbitkv_shm::{Segment, ShmemHugePages, available_memory, shmem_huge_pages};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Below this, a pool holds a few long prompts of a small model at most.
const SMALL_MEMORY_BYTES: u64 = 4 << 30;

pub(super) fn findings(endpoint: &Endpoint) -> Vec<Finding> {
    vec![memory(), socket_directory(endpoint), process_handles(), locked_memory(), huge_pages()]
}

fn memory() -> Finding {
    match available_memory() {
        Ok(memory) => {
            let usable = memory.usable_bytes();
            let by = if memory.cgroup_bytes.is_some_and(|bytes| bytes < memory.host_bytes) {
                " (cgroup limit)"
            } else {
                ""
            };
            let what = format!("memory: {} available{by}", ByteSize(usable).display().iec());
            if usable < SMALL_MEMORY_BYTES {
                Finding::warn(what, "a pool of 25 % of it holds little; free memory or raise the limit")
            } else {
                Finding::ok(what)
            }
        }
        Err(error) => Finding::warn(format!("memory: {error}"), "give the manager a --pool-size in bytes"),
    }
}

fn socket_directory(endpoint: &Endpoint) -> Finding {
    let dir = endpoint.directory();
    let shown = dir.display();
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::ok(format!("socket directory: {shown} is made when a manager starts"))
        }
        Err(error) => Finding::fail(format!("socket directory: {shown}: {error}"), "choose another --socket"),
        Ok(meta) if !meta.is_dir() => {
            Finding::fail(format!("socket directory: {shown} is no directory"), "choose another --socket")
        }
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            let what = format!("socket directory: {shown} belongs to user {}", meta.uid());
            Finding::fail(what, "choose another --socket, in a directory of your own")
        }
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            let what = format!(
                "socket directory: {shown} can be written by others (mode {:04o})",
                meta.mode() & 0o7777
            );
            Finding::fail(what, format!("chmod 700 {shown}"))
        }
        Ok(_) => Finding::ok(format!("socket directory: {shown} is yours alone to write")),
    }
}

fn process_handles() -> Finding {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok("pidfd: the kernel says when an engine process has ended"),
        Err(error) => Finding::fail(
            format!("pidfd: pidfd_open is refused ({error})"),
            "use Linux 5.3 or later, and a container runtime whose seccomp profile allows it",
        ),
    }
}

fn locked_memory() -> Finding {
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok("memlock: unlimited"),
        Some(bytes) => Finding::warn(
            format!("memlock: {}", ByteSize(bytes).display().iec()),
            "enough for CPU engines; GPUs register the pool with their driver, which may need `ulimit -l unlimited`",
        ),
    }
}

/// Asked of the kernel, which has more than one reason to give none.
fn huge_pages() -> Finding {
    const BYTES: usize = 4 << 20;
    let rule = shmem_huge_pages();
    match Segment::create("orbitkv-doctor", BYTES).and_then(|segment| segment.populate(1)) {
        Ok(BYTES) => Finding::ok("huge pages: used for the pool"),
        Ok(_) if matches!(rule, ShmemHugePages::Always | ShmemHugePages::Advised) => {
            Finding::ok(format!("huge pages: the kernel's rule for shared memory is {rule:?}"))
        }
        Ok(got) => Finding::warn(
            format!(
                "huge pages: {got} of {BYTES} bytes tried, so registering the pool and reading from an SSD are slower"
            ),
            "use Linux 6.1 or later, or as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Err(error) => {
            Finding::fail(format!("shared memory: {error}"), "use a kernel and a container with memfd_create")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn graded(mode: u32) -> Grade {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let socket = dir.path().join("manager.sock");
        socket_directory(&Endpoint { socket, socket_given: true, http_given: None, http_configured: None })
            .grade
    }

    #[test]
    fn a_directory_that_others_write_fails() {
        assert_eq!((graded(0o700), graded(0o755), graded(0o777)), (Grade::Ok, Grade::Ok, Grade::Fail));
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("later/manager.sock");
        assert_eq!(
            socket_directory(&Endpoint {
                socket,
                socket_given: true,
                http_given: None,
                http_configured: None
            })
            .grade,
            Grade::Ok
        );
    }
}
