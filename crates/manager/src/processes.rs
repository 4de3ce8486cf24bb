//! The processes behind sessions: who may still be copying when a connection is gone.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One client process. Its pidfd becomes readable when it has exited, and not before.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Option<u32>,
    pidfd: OwnedFd,
    /// Its sessions that are not gone, open ones included.
    pub(crate) sessions: BTreeSet<u64>,
}

impl Process {
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// All of them, one entry a process however many sessions it has.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: BTreeMap<u64, Process>,
    next: u64,
}

impl Processes {
    /// The live entry with that process id. An entry that has exited is not it: the id may have been
    /// given to another process since.
    pub(crate) fn alive(&self, pid: Option<u32>) -> Option<u64> {
        let pid = pid?;
        let (id, process) = self.all.iter().find(|(_, p)| p.pid == Some(pid) && !exited(p.pidfd()))?;
        debug_assert!(process.pid.is_some());
        Some(*id)
    }

    pub(crate) fn add(&mut self, pid: Option<u32>, pidfd: OwnedFd) -> u64 {
        self.next += 1;
        self.all.insert(self.next, Process { pid, pidfd, sessions: BTreeSet::new() });
        self.next
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Process> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Process> {
        self.all.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Process> {
        self.all.remove(&id)
    }
}

/// Whether the process behind a pidfd has exited.
pub(crate) fn exited(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error counts as alive: late is safe, early is not.
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}
