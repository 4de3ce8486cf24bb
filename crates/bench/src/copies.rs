//! The host copy engine against plain copies on as many threads.

use crate::memory::Buffers;
use crate::report::{Row, Target};
use crate::rounds::alternate;
use anyhow::{Context, Result, ensure};
use orbitkv_copy::{CopyEngine, HostCopy, HostCopyConfig};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const BYTES: usize = 128 << 20;
/// A page of 16 tokens has 64 KiB a layer in a model of 8 KV heads of 128, in 16 bit.
const FRAGMENT_BYTES: usize = 64 << 10;
const LAYERS: usize = 32;
/// More threads than this seldom raise the bandwidth of a host.
const MAX_THREADS: usize = 8;

struct Engine {
    engine: HostCopy,
    woken: Receiver<()>,
}

impl Engine {
    fn new(threads: usize) -> Result<Self> {
        let (wake, woken) = channel();
        // Nobody listens any more: the benchmark is over.
        let waker = Arc::new(move || {
            let _ = wake.send(());
        });
        let config = HostCopyConfig { waker: Some(waker), ..HostCopyConfig::new(threads) };
        Ok(Self { engine: HostCopy::new(config)?, woken })
    }

    fn restore(&mut self, buffers: &mut Buffers) -> Result<()> {
        buffers.restore(LAYERS, FRAGMENT_BYTES, |job| {
            self.engine.submit(job).map_err(|refused| refused.error)?;
            let mut done = Vec::new();
            while done.is_empty() {
                self.woken.recv_timeout(Duration::from_secs(20)).context("the engine says nothing")?;
                self.engine.poll(&mut done);
            }
            Ok(())
        })
    }
}

fn plain(buffers: &mut Buffers, threads: usize) {
    let (source, target) = buffers.parts();
    let part = source.len().div_ceil(threads);
    thread::scope(|scope| {
        for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

pub(crate) fn rows() -> Result<Vec<Row>> {
    let threads = thread::available_parallelism().map_or(2, usize::from).min(MAX_THREADS);
    let buffers = RefCell::new(Buffers::new(BYTES));
    let mut engine = Engine::new(threads)?;
    let timed = |copy: &mut dyn FnMut(&mut Buffers) -> Result<()>| {
        let mut buffers = buffers.borrow_mut();
        let start = Instant::now();
        copy(&mut buffers)?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(buffers.take_equal(), "the copy has other bytes than its source");
        Ok(BYTES as f64 / seconds / f64::from(1 << 30))
    };
    let (ours, limit) = alternate(
        || timed(&mut |buffers| engine.restore(buffers)),
        || {
            timed(&mut |buffers| {
                plain(buffers, threads);
                Ok(())
            })
        },
    )?;
    let name = "host copy against memcpy, same threads";
    Ok(vec![Row { name, ours, limit: limit.median, unit: "GiB/s", target: Target::AtLeast(0.8) }])
}
