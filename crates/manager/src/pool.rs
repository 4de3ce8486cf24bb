//! The segments behind the core's slots, and the thread that takes and returns their memory.

use crate::settings::SPARE_BYTES;
use crate::waker::Waker;
use orbitkv_shm::{Segment, available_memory};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

/// Most jobs that wait for the thread.
const JOBS: usize = 256;
/// How long disks may take to let go of a segment.
const USERS_PATIENCE: Duration = Duration::from_secs(1);
/// More threads do not make page faults faster.
const MAX_POPULATE_THREADS: usize = 8;

/// A segment that clients may have.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) segment: Arc<Segment>,
    pub(crate) slot_bytes: u64,
    /// What of it lies in huge pages.
    huge_page_bytes: u64,
    /// Sessions that were given it.
    pub(crate) sessions: Vec<u64>,
}

enum Job {
    Grow { id: u32, bytes: u64 },
    Release(Arc<Segment>, Option<Receiver<()>>),
}

/// Outcome of a growth.
pub(crate) struct Grown {
    pub(crate) id: u32,
    pub(crate) result: Result<Populated, String>,
}

/// A segment that has all its memory.
pub(crate) struct Populated {
    segment: Segment,
    huge_page_bytes: u64,
}

/// All segments. Taking and returning memory is done in order by one thread, so that what is returned
/// is there for what grows next.
pub(crate) struct Pool {
    shared: BTreeMap<u32, Shared>,
    /// Bytes from slot to slot of the segments that grow.
    growing: BTreeMap<u32, u64>,
    jobs: SyncSender<Job>,
    grown: Receiver<Grown>,
}

impl Pool {
    /// Starts the thread.
    pub(crate) fn start(waker: Waker) -> io::Result<Self> {
        let (jobs, todo) = sync_channel(JOBS);
        let (done, grown) = sync_channel(JOBS);
        thread::Builder::new().name("orbitkv-pool".to_owned()).spawn(move || {
            for job in todo {
                match job {
                    Job::Grow { id, bytes } => {
                        if done.send(Grown { id, result: grow(id, bytes) }).is_err() {
                            return;
                        }
                        waker.wake();
                    }
                    Job::Release(segment, users) => {
                        await_users(users);
                        release(&segment);
                    }
                }
            }
        })?;
        Ok(Self { shared: BTreeMap::new(), growing: BTreeMap::new(), jobs, grown })
    }

    /// Asks for a segment; false if too much is asked for already.
    pub(crate) fn grow(&mut self, id: u32, slot_bytes: u64, bytes: u64) -> bool {
        if self.jobs.try_send(Job::Grow { id, bytes }).is_err() {
            return false;
        }
        self.growing.insert(id, slot_bytes);
        true
    }

    /// The next finished growth; its segment can be shared from now on.
    pub(crate) fn next_grown(&mut self) -> Option<(u32, Result<(), String>)> {
        let Grown { id, result } = match self.grown.try_recv() {
            Ok(grown) => grown,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
        };
        let slot_bytes = self.growing.remove(&id).unwrap_or(0);
        let result = result.map(|Populated { segment, huge_page_bytes }| {
            let segment = Arc::new(segment);
            let shared = Shared { segment, slot_bytes, huge_page_bytes, sessions: Vec::new() };
            self.shared.insert(id, shared);
        });
        Some((id, result))
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Shared> {
        self.shared.get_mut(&id)
    }

    /// Gives the memory back and returns the sessions that have to know. `users` is asked for what tells that no
    /// disk has the memory registered any more.
    pub(crate) fn release(
        &mut self,
        id: u32,
        users: impl FnOnce(&Arc<Segment>) -> Option<Receiver<()>>,
    ) -> Vec<u64> {
        let Some(shared) = self.shared.remove(&id) else { return Vec::new() };
        let job = Job::Release(Arc::clone(&shared.segment), users(&shared.segment));
        if self.jobs.try_send(job).is_err() {
            // The core thread waits for nobody: what is registered still is freed when it no longer is.
            release(&shared.segment);
        }
        shared.sessions
    }

    /// How much of all segments lies in huge pages.
    pub(crate) fn huge_page_bytes(&self) -> u64 {
        self.shared.values().map(|shared| shared.huge_page_bytes).sum()
    }

    /// Forgets that a session has segments.
    pub(crate) fn session_closed(&mut self, session: u64) {
        for shared in self.shared.values_mut() {
            shared.sessions.retain(|s| *s != session);
        }
    }
}

fn grow(id: u32, bytes: u64) -> Result<Populated, String> {
    let memory = available_memory().map_err(|e| e.to_string())?;
    // Asked before, because a cgroup does not refuse: it kills.
    let usable_bytes = memory.usable_bytes();
    if usable_bytes < bytes.saturating_add(SPARE_BYTES) {
        return Err(format!(
            "{usable_bytes} bytes of memory are available; {bytes} and {SPARE_BYTES} to spare are needed"
        ));
    }
    let size = usize::try_from(bytes).map_err(|e| e.to_string())?;
    let segment = Segment::create(&format!("orbitkv-{id}"), size).map_err(|e| e.to_string())?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_POPULATE_THREADS);
    let huge_page_bytes = segment.populate(threads).map_err(|e| e.to_string())? as u64;
    tracing::debug!(segment = id, bytes, huge_page_bytes, "segment populated");
    Ok(Populated { segment, huge_page_bytes })
}

/// Memory that a disk has registered is freed only when it lets go of it, and the next segment may need it. A disk that
/// does not answer is not waited for long: nothing is under way on a segment that is released.
fn await_users(users: Option<Receiver<()>>) {
    if let Some(users) = users
        && users.recv_timeout(USERS_PATIENCE) == Err(RecvTimeoutError::Timeout)
    {
        tracing::warn!("memory of a segment is kept until the SSD cache's disk lets go of it");
    }
}

/// Clients may map the segment for a while yet: its memory goes now, whatever they do.
fn release(segment: &Segment) {
    if let Err(error) = segment.punch_all() {
        tracing::warn!(%error, "memory of a segment is kept until the last client unmaps it");
    }
}
