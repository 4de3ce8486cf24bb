//! The worker's side: copies, fences, and the self-test.

mod accept;
mod admission;
mod checksums;
mod chores;
mod copier;
mod device;
mod load;
mod pinned;
mod pins;
mod probe;
mod reports;
mod save;
mod scratch;
mod segments;
mod session;
mod state;
mod stats;
mod summers;
mod unserved;
mod verify;

pub use device::{CudaDevice, Device};
pub use load::{LayerOrder, Load};
pub use pinned::Pinned;
pub use save::Save;
pub use scratch::{gather_block, scatter_block};
pub use verify::Verify;

use crate::ClientError;
use crate::link::{Fds, Handler, Link, LinkThread, Session};
use crate::operations::Operations;
use crate::registration::Registration;
use crate::ticket::Ticket;
use crate::waiters::Signal;
use accept::Before;
use copier::Copier;
use device::Engine;
use orbitkv_copy::{CopyEngine, KvLayout, Waker};
use orbitkv_wire::{Header, HelloRole, Resume, ToClient};
use probe::Attach;
use state::Work;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use verify::Verifier;

/// How a worker is made.
pub struct WorkerConfig {
    /// What it tells the manager.
    pub registration: Registration,
    /// Its tensor-parallel rank.
    pub rank: u16,
    /// Where the addresses of all layouts point to.
    pub device: Device,
    /// KV memory of the first cache group.
    pub layout: Arc<KvLayout>,
    /// KV memory of further groups, by their number: different memory.
    pub more_layouts: Vec<(u16, Arc<KvLayout>)>,
    /// Memory of the same page bytes and at least two blocks that no request uses.
    pub scratch: Arc<KvLayout>,
    /// Whether the adapter's own probe of `layout` passed.
    pub layout_probe_passed: bool,
    /// Threads that copy in host memory, 1 to 128.
    pub copy_threads: usize,
    /// Which restored pages are checked.
    pub verify_restore: Verify,
}

/// Verdict of the newest attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Not yet known.
    Pending,
    /// Saves and restores give equal bytes.
    Passed,
    /// They do not, or not in time; why.
    Failed(String),
}

/// Copies pages between KV memory and the pool, on its own threads.
pub struct WorkerClient {
    core: Arc<Core>,
    threads: Mutex<Threads>,
}

/// What all threads of a worker share.
struct Core {
    work: Arc<Work>,
    operations: Arc<Operations>,
    attach: Attach,
    self_test: Mutex<SelfTest>,
    /// KV memory by cache group.
    layouts: Vec<(u16, Arc<KvLayout>)>,
    scratch: Arc<KvLayout>,
    device: Device,
    layout_probe_passed: bool,
    rank: u16,
}

struct Threads {
    link: LinkThread,
    copier: Option<JoinHandle<()>>,
    probe: Option<JoinHandle<()>>,
    /// The process that has these threads; a fork of it does not.
    process: u32,
}

impl WorkerClient {
    /// Starts the threads and the connection. A CUDA device is tried, which takes some milliseconds.
    ///
    /// # Errors
    /// A value that cannot be, a device that is not there, or a system that gives no thread.
    pub fn new(config: WorkerConfig) -> Result<Self, ClientError> {
        let (device, threads) = (config.device.clone(), config.copy_threads);
        Self::start(config, |waker| Engine::new(&device, threads, waker))
    }

    /// As [`WorkerClient::new`], with a copy engine of the caller's for host memory: it must call the waker after each
    /// end of a job, and hold at least 96 jobs.
    ///
    /// # Errors
    /// As there, and those of `make`.
    pub fn with_engine(
        config: WorkerConfig,
        make: impl FnOnce(Waker) -> Result<Box<dyn CopyEngine>, ClientError>,
    ) -> Result<Self, ClientError> {
        Self::start(config, |waker| Ok(Engine { copies: make(waker)?, cuda: None }))
    }

    fn start(
        config: WorkerConfig,
        make: impl FnOnce(Waker) -> Result<Engine, ClientError>,
    ) -> Result<Self, ClientError> {
        check(&config)?;
        let link =
            Link::new(&config.registration, HelloRole::Worker, config.rank)?.telling(config.verify_restore);
        let signal = Arc::new(Signal::default());
        let wakes = Arc::clone(&signal);
        let Engine { copies, cuda } = make(Arc::new(move || wakes.raise()))?;
        let work = Arc::new(Work::new(Arc::new(link), signal, cuda));
        let link = Arc::clone(&work.link);
        let copier = Copier::new(Arc::clone(&work), copies, Verifier::new(config.verify_restore))?;
        let first = config.registration.groups.first().map_or(0, |g| g.group);
        let core = Arc::new(Core {
            operations: Arc::new(Operations::new(Arc::clone(&link))),
            work,
            attach: Attach::default(),
            self_test: Mutex::new(SelfTest::Pending),
            layouts: std::iter::once((first, config.layout)).chain(config.more_layouts).collect(),
            scratch: config.scratch,
            device: config.device,
            layout_probe_passed: config.layout_probe_passed,
            rank: config.rank,
        });
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(ClientError::system("cannot start a thread of the worker"))
        };
        let copier = spawn("orbitkv-copier", Box::new(move || copier.run()))?;
        let probe_core = Arc::clone(&core);
        let probe = spawn("orbitkv-probe", Box::new(move || probe::run(&probe_core)))?;
        let handler: Arc<dyn Handler> = Arc::clone(&core) as Arc<dyn Handler>;
        let link = link.start(handler)?;
        let process = std::process::id();
        let threads = Mutex::new(Threads { link, copier: Some(copier), probe: Some(probe), process });
        Ok(Self { core, threads })
    }

    /// Whether a manager has accepted the connection.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.core.work.link.is_connected()
    }

    /// One line for people: connected, or why not.
    #[must_use]
    pub fn status(&self) -> String {
        self.core.work.link.status()
    }

    /// Verdict of the newest attach.
    #[must_use]
    pub fn self_test(&self) -> SelfTest {
        if self.core.work.is_lost() {
            return SelfTest::Failed(device::LOST.to_owned());
        }
        self.core.self_test.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For people: where KV is, and how it is copied.
    #[must_use]
    pub fn method(&self) -> String {
        let layout = self.core.layouts.first().map(|(_, layout)| layout);
        match (&self.core.work.cuda, layout) {
            (Some(cuda), Some(layout)) => format!("{}: {}", self.core.device, cuda.method(layout)),
            _ => self.core.device.to_string(),
        }
    }

    /// For people: what makes copies slower than they could be, or has ended them. `None` while nothing does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.core.work.cuda.as_ref().and_then(device::Cuda::trouble)
    }

    /// Copies the ticket's pages into these blocks, one each, in layer order; never blocks. A ticket of
    /// an earlier manager run or session, or one whose segment does not arrive in time, fails its pages.
    ///
    /// # Errors
    /// Bytes that are no restore ticket; blocks that do not fit the ticket or the layout; blocks in the memory of a
    /// device, for which there is [`WorkerClient::restore_after`].
    pub fn restore(&self, ticket: &[u8], blocks: &[u32]) -> Result<Load, ClientError> {
        self.core.restore_ticket(&Ticket::decode(ticket)?, blocks, Before::Nothing)
    }

    /// As [`WorkerClient::restore`], after what is on `stream` (`CUstream`) now, which may still use the blocks. To
    /// be called on the thread that feeds the stream.
    ///
    /// # Errors
    /// As there, and what the driver says: nothing is copied then.
    pub fn restore_after(&self, stream: usize, ticket: &[u8], blocks: &[u32]) -> Result<Load, ClientError> {
        self.core.restore_ticket(&Ticket::decode(ticket)?, blocks, Before::Stream(stream))
    }

    /// Takes custody of a ticket's pages, maps them and compares their checksums as `verify_restore` says, before it is
    /// known which blocks they go to; never blocks. For engines to which a restore must not fail once it was promised.
    /// A ticket of an earlier manager run or session pins nothing.
    ///
    /// # Errors
    /// Bytes that are no restore ticket, or one of several cache groups.
    pub fn pin(&self, ticket: &[u8]) -> Result<Pinned, ClientError> {
        self.core.pin_ticket(&Ticket::decode(ticket)?)
    }

    /// Copies these blocks into the ticket's pages, checksums and commits them; never blocks.
    ///
    /// # Errors
    /// Bytes that are no save ticket; blocks that do not fit the ticket or the layout; blocks in the memory of a
    /// device, for which there is [`WorkerClient::save_after`].
    pub fn save(&self, ticket: &[u8], blocks: &[u32]) -> Result<Save, ClientError> {
        self.core.save_ticket(&Ticket::decode(ticket)?, blocks, Before::Nothing)
    }

    /// As [`WorkerClient::save`], after what is on `stream` (`CUstream`) now, which computes the blocks. To be called
    /// on the thread that feeds the stream.
    ///
    /// # Errors
    /// As there, and what the driver says: nothing is copied then.
    pub fn save_after(&self, stream: usize, ticket: &[u8], blocks: &[u32]) -> Result<Save, ClientError> {
        self.core.save_ticket(&Ticket::decode(ticket)?, blocks, Before::Stream(stream))
    }

    /// These blocks are about to be overwritten: waits at most `timeout` for saves that read them, and
    /// aborts those that have not finished. On return no save reads them. Returns the number of pages aborted.
    #[must_use]
    pub fn fence(&self, blocks: &[u32], timeout: Duration) -> usize {
        let readers = self.core.work.readers(blocks);
        if readers.is_empty() {
            return 0;
        }
        let until = Instant::now() + timeout;
        let mut aborted = 0;
        for page in readers {
            if page.wait_still(until) {
                continue;
            }
            if self.core.work.give_up_queued(&page) || page.stop() {
                aborted += 1;
            }
        }
        self.core.work.signal.raise();
        aborted
    }

    /// Counters of this worker, by name.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let mut stats = self.core.work.stats.read();
        stats.push(("reconnects", self.core.work.link.reconnects()));
        if let Some(cuda) = &self.core.work.cuda {
            let registration = cuda.registration();
            stats.push(("registered_bytes", registration.registered_bytes));
            stats.push(("registering_bytes", registration.pending_bytes));
        }
        stats
    }

    /// Ends all copies and the session; idempotent. True: nothing touches KV memory any more. False: copies of a
    /// device have not ended, because it is lost or the stream that they come after does not move; KV memory and
    /// pool pages are then theirs until the process ends.
    pub fn close(&self) -> bool {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).close(&self.core);
        !self.core.work.has_custody()
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        self.close();
    }
}

impl Threads {
    fn close(&mut self, core: &Core) {
        // A forked child has the handle but none of the threads.
        if self.process != std::process::id() {
            return;
        }
        core.attach.stop();
        core.work.stop();
        // The copy thread first: what it gives back still leaves on the connection.
        for thread in [self.probe.take(), self.copier.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        self.link.close();
    }
}

impl Core {
    fn set_self_test(&self, verdict: SelfTest) {
        *self.self_test.lock().unwrap_or_else(PoisonError::into_inner) = verdict;
    }
}

impl Handler for Core {
    fn resume(&self) -> Option<Resume> {
        self.work.resume()
    }

    fn welcome(&self, session: Session) {
        self.set_self_test(SelfTest::Pending);
        self.work.welcome(session);
        self.operations.welcome(session);
        self.attach.attached(session);
    }

    fn message(&self, header: &Header, message: ToClient<'_>, fds: &mut Fds) -> Result<(), String> {
        match message {
            ToClient::Segment { segment, slot_bytes, bytes } => {
                let fd = fds.pop_front().ok_or("a segment came without its descriptor")?;
                self.work.segment((segment, slot_bytes, bytes), fd)
            }
            ToClient::SegmentGone { segment } => {
                self.work.segment_gone(segment);
                Ok(())
            }
            ToClient::Fence { scheduler } => {
                self.work.fence_scheduler(scheduler);
                Ok(())
            }
            // A worker that is a solo's half learns nothing it needs from this.
            ToClient::InstanceState { .. } => Ok(()),
            _ if self.operations.message(header, &message)? => Ok(()),
            other => Err(format!("the manager sent a worker {}", other.kind().name())),
        }
    }

    fn disconnected(&self) {
        self.work.disconnected();
        self.operations.disconnected();
        self.set_self_test(SelfTest::Pending);
    }

    fn timer(&self, now: Instant) -> Option<Instant> {
        self.operations.expire(now)
    }
}

fn check(config: &WorkerConfig) -> Result<(), ClientError> {
    config.registration.check()?;
    let world_size = config.registration.world_size;
    if config.rank >= world_size {
        return Err(ClientError::value("rank", config.rank, format!("below the world size {world_size}")));
    }
    let groups = &config.registration.groups;
    let page_bytes = groups.first().map_or(0, |g| g.page_bytes);
    let mut layouts = vec![("layout", page_bytes, &config.layout), ("scratch", page_bytes, &config.scratch)];
    for (i, (group, layout)) in config.more_layouts.iter().enumerate() {
        let Some(spec) = groups.iter().skip(1).find(|g| g.group == *group) else {
            return Err(ClientError::value("group", group, "registered, and not the first one"));
        };
        if config.more_layouts[..i].iter().any(|(other, _)| other == group) {
            return Err(ClientError::value("group", group, "given one layout"));
        }
        layouts.push(("layout", spec.page_bytes, layout));
    }
    for (name, page_bytes, layout) in layouts {
        if layout.page_bytes() as u64 != page_bytes {
            let got = format!("a page of {} bytes", layout.page_bytes());
            return Err(ClientError::value(name, got, format!("the registered {page_bytes} bytes")));
        }
        if u32::try_from(layout.num_blocks()).is_err() {
            return Err(ClientError::value(name, layout.num_blocks(), "below 2^32 blocks"));
        }
    }
    if config.scratch.num_blocks() < 2 {
        return Err(ClientError::value("scratch", config.scratch.num_blocks(), "at least 2 blocks"));
    }
    Ok(())
}
