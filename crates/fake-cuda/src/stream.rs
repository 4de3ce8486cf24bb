//! Streams: a queue, and a thread that carries it out.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::copies::Host;
use crate::copy_engine::Served;
use crate::device::Device;
use crate::event::Counts;
use crate::kernels::Launch;

/// One row of bytes to move.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    pub(crate) src: usize,
    pub(crate) dst: usize,
    pub(crate) bytes: usize,
}

/// What a stream does in its turn.
pub(crate) enum Work {
    Copy(Host, Vec<Move>),
    Kernel(Launch),
    Record(Arc<Counts>, u64),
    Wait(Arc<Counts>, u64),
    Call(extern "C" fn(*mut c_void), usize),
}

/// `CUstream` points to one of these.
pub(crate) struct Stream {
    pub(crate) device: Arc<Device>,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: VecDeque<Work>,
    busy: bool,
    closed: bool,
}

impl State {
    /// Whether the next thing to do, apart from records, is a copy in this direction.
    fn goes_on(&self, host: Host) -> bool {
        let next = self.waiting.iter().find(|work| !matches!(work, Work::Record(..)));
        matches!(next, Some(Work::Copy(way, _)) if *way == host)
    }
}

impl Stream {
    pub(crate) fn new(device: Arc<Device>) -> std::io::Result<Stream> {
        let state = State { waiting: VecDeque::new(), busy: false, closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        let (theirs, owner) = (queue.clone(), device.clone());
        let thread =
            thread::Builder::new().name("fake-stream".to_owned()).spawn(move || theirs.run(&owner))?;
        Ok(Stream { device, queue, thread: Some(thread) })
    }

    pub(crate) fn push(&self, work: Work) {
        self.queue.lock().waiting.push_back(work);
        self.queue.changed.notify_all();
    }

    /// Waits until the stream is empty.
    pub(crate) fn drain(&self) {
        let mut state = self.queue.lock();
        while state.busy || !state.waiting.is_empty() {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Stream {
    /// What was queued is still carried out, as on the driver.
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, device: &Device) {
        let mut state = self.lock();
        let mut served: Option<(Host, Served<'_>)> = None;
        loop {
            served = served.filter(|(host, _)| state.goes_on(*host));
            if let Some(work) = state.waiting.pop_front() {
                state.busy = true;
                drop(state);
                if !device.is_gone() {
                    if let (Work::Copy(host, _), None) = (&work, &served) {
                        served = Some((*host, device.engine(*host).enter(&|| device.is_gone())));
                    }
                    carry_out(device, work);
                }
                state = self.lock();
                state.busy = false;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn carry_out(device: &Device, work: Work) {
    match work {
        Work::Copy(_, moves) => {
            thread::sleep(Duration::from_micros(device.copy_us()));
            for row in moves {
                // A context that is destroyed moves no further byte.
                let _moving = device.moving();
                if !device.is_gone() {
                    copy(row);
                }
            }
        }
        Work::Kernel(launch) => {
            thread::sleep(Duration::from_micros(device.copy_us()));
            launch.run(device);
        }
        Work::Record(counts, recording) => counts.reach(recording),
        Work::Wait(counts, recording) => counts.wait(recording, &|| device.is_gone()),
        Work::Call(function, argument) => function(std::ptr::with_exposed_provenance_mut(argument)),
    }
}

/// Copies half, lets others run, and copies the rest: a reader that is too early sees it.
pub(crate) fn copy(row: Move) {
    let half = row.bytes / 2;
    for (offset, bytes) in [(0, half), (half, row.bytes - half)] {
        let src = std::ptr::with_exposed_provenance::<u8>(row.src + offset);
        let dst = std::ptr::with_exposed_provenance_mut::<u8>(row.dst + offset);
        // SAFETY: whoever asked for the copy has promised the driver that both ranges are valid and apart until it
        // is done, as a caller of the real one does.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
        thread::yield_now();
    }
}
