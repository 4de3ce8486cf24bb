//! The host engine against plain copies on as many threads, and the checksum, over 64 MiB.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use orbitkv_copy::{
    CopyDirection, CopyEngine, CopyId, CopyJob, Fragment, HostCopy, HostCopyConfig, Step, crc64,
};

const BYTES: usize = 64 << 20;

/// `layers` steps of `pages` fragments each, over the whole buffer.
fn job(source: &[u8], target: *mut u8, layers: usize, pages: usize) -> CopyJob {
    let len = BYTES / layers / pages;
    let fragment = |layer: usize, page: usize| {
        let at = (layer * pages + page) * len;
        // SAFETY: `at + len <= BYTES`, the size of both buffers, which live for the whole benchmark; fragments are
        // disjoint.
        unsafe { Fragment::new(source.as_ptr().add(at), target.add(at), len) }
    };
    let steps = (0..layers).map(|layer| Step::new((0..pages).map(|page| fragment(layer, page)).collect()));
    CopyJob::new(CopyId(1), CopyDirection::Restore, steps.collect(), Vec::new()).unwrap()
}

fn copies(criterion: &mut Criterion) {
    let threads = thread::available_parallelism().map_or(2, usize::from).min(8);
    let source: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let mut target = vec![0_u8; BYTES];
    let mut group = criterion.benchmark_group(format!("copy_64mib_{threads}_threads"));
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("plain", |bencher| {
        let part = BYTES / threads;
        bencher.iter(|| {
            thread::scope(|scope| {
                for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
        });
    });
    let target = target.as_mut_ptr();
    for (name, layers, pages) in
        [("engine_1_mib", 8, 8), ("engine_64_kib", 32, 32), ("engine_4_kib", 32, 512)]
    {
        group.bench_function(name, |bencher| {
            let (wake, woken) = mpsc::channel();
            let waker = move || wake.send(()).unwrap();
            let config = HostCopyConfig { waker: Some(Arc::new(waker)), ..HostCopyConfig::new(threads) };
            let mut engine = HostCopy::new(config).unwrap();
            let mut done = Vec::new();
            bencher.iter(|| {
                engine.submit(job(&source, target, layers, pages)).unwrap();
                woken.recv().unwrap();
                engine.poll(&mut done);
                assert_eq!(done.drain(..).count(), 1);
            });
        });
    }
    group.finish();
}

fn checksum(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let mut group = criterion.benchmark_group("crc64_64mib");
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("one_thread", |bencher| bencher.iter(|| crc64(&bytes)));
    group.finish();
}

criterion_group!(benches, copies, checksum);
criterion_main!(benches);
