//! pread and pwrite on threads: where io_uring is refused.

use crate::IoBuffer;
use crate::background::Background;
use crate::config::DiskConfig;
use crate::job::{Job, Step};
use crate::waiting::Waiting;
use crate::waker::Waker;
use orbitkv_store::{Completion, Direction, DiskError};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is before a thread and behind it.
#[derive(Debug)]
struct State {
    waiting: Waiting<Job>,
    /// Since when each thread has its job.
    running: Vec<Option<Instant>>,
    background: Background,
    done: Vec<Completion<IoBuffer>>,
    ends: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    waker: Waker,
}

/// Threads that take the next request themselves. They end on their own after [`Threads::stop`]; each owns its job
/// meanwhile, so nobody has to wait for them.
#[derive(Debug)]
pub(crate) struct Threads(Arc<Shared>);

impl Shared {
    /// Nothing here leaves the state half changed, so it is good even after a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, number: usize) {
        let mut state = self.lock();
        while !state.ends {
            let may_background = state.background.may_begin(Instant::now());
            let Some(mut job) = state.waiting.pop(may_background) else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.background.begin(job.request());
            state.running[number] = Some(Instant::now());
            drop(state);
            let result = carry_out(&mut job);
            state = self.lock();
            state.background.end(job.request(), Instant::now());
            // A background request that was not allowed may be now, on a thread that sleeps.
            self.work.notify_one();
            state.done.push(job.end(result));
            state.running[number] = None;
            self.waker.wake();
        }
    }
}

impl Threads {
    pub(crate) fn start(config: &DiskConfig, waker: Waker) -> io::Result<Self> {
        let threads = config.threads.min(config.queue_depth as usize);
        let state = State {
            waiting: Waiting::new(),
            running: vec![None; threads],
            background: Background::new(config, threads),
            done: Vec::new(),
            ends: false,
        };
        let (state, work) = (Mutex::new(state), Condvar::new());
        let this = Self(Arc::new(Shared { state, work, waker }));
        for number in 0..threads {
            let shared = Arc::clone(&this.0);
            let started =
                thread::Builder::new().name("orbitkv-ssd".to_owned()).spawn(move || shared.run(number));
            if let Err(error) = started {
                this.stop();
                return Err(error);
            }
        }
        Ok(this)
    }

    pub(crate) fn submit(&self, job: Job) {
        self.0.lock().waiting.push(job.request().priority, job);
        self.0.work.notify_one();
    }

    pub(crate) fn poll(&self, done: &mut Vec<Completion<IoBuffer>>) {
        done.append(&mut self.0.lock().done);
    }

    pub(crate) fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        let state = self.0.lock();
        state.running.iter().flatten().min().map(|since| now.saturating_duration_since(*since))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().running.iter().all(Option::is_none)
    }

    pub(crate) fn stop(&self) {
        let mut state = self.0.lock();
        state.ends = true;
        state.waiting.clear();
        self.0.work.notify_all();
    }
}

fn carry_out(job: &mut Job) -> Result<(), DiskError> {
    loop {
        let brought = transfer(job.file(), &job.step());
        if let Some(result) = job.advance(brought) {
            return result;
        }
    }
}

/// One system call.
fn transfer(file: &File, step: &Step) -> Result<u32, Errno> {
    let (fd, address, bytes) = (file.as_raw_fd(), step.address.cast(), step.bytes as usize);
    let offset = i64::try_from(step.offset).map_err(|_| Errno::OVERFLOW)?;
    let brought = match step.direction {
        // SAFETY: the job, which the calling thread owns during the call, keeps the file open and the memory
        // mapped, and the step is inside of it. Nobody in this process has a reference to these bytes.
        Direction::Read => unsafe { libc::pread(fd, address, bytes, offset) },
        // SAFETY: as above; the kernel only reads from the memory.
        Direction::Write => unsafe { libc::pwrite(fd, address, bytes, offset) },
    };
    // Never more than was asked for, which fits.
    u32::try_from(brought).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
