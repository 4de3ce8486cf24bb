//! What every copy engine must do, run against each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

use std::sync::Arc;
use std::time::Duration;

use orbitkv_copy::{
    CopyDirection, CopyDone, CopyEngine, CopyError, CopyId, CopyJob, CopyMethod, CopyState, CudaCopy,
    CudaCopyConfig, CudaDriver, CudaHandle, FakeCopy, FakePlan, Fragment, HostCopy, HostCopyConfig, JobError,
    Progress, Refused, Step, WaitOutcome, crc64_sources, page_crc64,
};
use orbitkv_fake_cuda::Fake;
use orbitkv_shm::Region;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use world::{Layer, World, drain, submit};

use CopyDirection::{Restore, Save};

const MAX_JOBS: usize = 4;
const BRIEF: Duration = Duration::from_micros(100);

/// Runs `check` against every engine that needs no device: each with its own way to let time pass.
fn for_each_engine(check: impl Fn(&mut dyn CopyEngine, &mut dyn FnMut())) {
    for threads in [1, 3] {
        let config = HostCopyConfig { max_jobs: MAX_JOBS, ..HostCopyConfig::new(threads) };
        check(&mut HostCopy::new(config).unwrap(), &mut || {
            std::thread::sleep(BRIEF);
        });
    }
    let mut fake = FakeCopy::new(MAX_JOBS, None);
    fake.plan_all(FakePlan { step_us: 10, ..FakePlan::default() });
    let (clock, mut now_us) = (fake.clone(), 0);
    // Half a step at a time, so that every check also sees jobs in the middle of one.
    check(&mut fake, &mut || {
        now_us += 5;
        clock.advance(now_us);
    });
    for method in [CopyMethod::Plain, CopyMethod::Rows, CopyMethod::Batch, CopyMethod::Kernel] {
        let (mut engine, handle) = cuda(method);
        // Pages that are not registered go through staging slots, far smaller than some of the fragments.
        check(&mut engine, &mut || std::thread::sleep(BRIEF));
        let mut engine = Registering { engine, handle, registered: Vec::new(), under_way: 0 };
        check(&mut engine, &mut || std::thread::sleep(BRIEF));
    }
}

/// A CUDA engine on a fake device, whose device memory is any memory.
fn cuda(method: CopyMethod) -> (CudaCopy, CudaHandle) {
    let fake = Fake::load().unwrap();
    let device = fake.device();
    device.take_any_memory();
    let driver = CudaDriver::load_from(fake.path()).unwrap();
    let config = CudaCopyConfig {
        max_jobs: MAX_JOBS,
        method,
        staging_slot_bytes: 4096,
        register_chunk_bytes: 8192,
        max_ahead_bytes: 1 << 20,
        ..CudaCopyConfig::new(device.ordinal)
    };
    let engine = CudaCopy::new(&driver, config).unwrap();
    let handle = engine.handle();
    assert_eq!(handle.batch_refusal().is_none(), method == CopyMethod::Batch);
    assert_eq!(handle.kernel_refusal().is_none(), method == CopyMethod::Kernel);
    (engine, handle)
}

/// Registers the pages of each job before it is submitted, in chunks smaller than most fragments, and forgets them
/// once no job is under way.
struct Registering {
    engine: CudaCopy,
    handle: CudaHandle,
    registered: Vec<Arc<Region>>,
    under_way: usize,
}

impl CopyEngine for Registering {
    fn submit(&mut self, job: CopyJob) -> Result<(), Refused> {
        for region in job.memory() {
            self.handle.register(region);
            self.registered.push(region.clone());
        }
        let registration = self.handle.wait_registered(Duration::from_secs(60));
        assert_eq!((registration.pending_bytes, registration.failure), (0, None));
        self.engine.submit(job).inspect(|()| self.under_way += 1)
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let before = out.len();
        self.engine.poll(out);
        self.under_way -= out.len() - before;
        if self.under_way == 0 {
            self.registered.drain(..).for_each(|region| self.handle.unregister(&region));
        }
    }
}

fn stop(progress: &Progress, drive: &mut dyn FnMut()) {
    while !progress.abort(BRIEF) {
        assert!(progress.custody(), "not stopped means custody");
        drive();
    }
}

#[test]
fn exactly_the_named_bytes_arrive_in_both_directions() {
    let layers = prop::collection::vec((1..3000_usize, 0..70_usize), 1..6);
    let pages = prop::collection::vec((any::<Index>(), any::<Index>()), 1..6);
    let strategy = (layers, 1..9_usize, 6..9_usize, pages, select(vec![Save, Restore]));
    for_each_engine(|engine, drive| {
        let cases = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
        // The engine lives across cases, as it does across requests; the closure of a runner may not mutate, so the
        // borrow goes through a cell.
        let parts = std::cell::RefCell::new((engine, drive));
        TestRunner::new(cases)
            .run(&strategy, |(layers, blocks, slots, pages, direction)| {
                let (engine, drive) = &mut *parts.borrow_mut();
                let pairs = distinct_pairs(&pages, blocks, slots);
                check_bytes(*engine, *drive, &World::new(&layers, blocks, slots), direction, &pairs);
                Ok(())
            })
            .unwrap();
    });
}

/// Different blocks in different slots.
fn distinct_pairs(pages: &[(Index, Index)], blocks: usize, slots: usize) -> Vec<(usize, usize)> {
    let (mut free_blocks, mut free_slots): (Vec<_>, Vec<_>) = ((0..blocks).collect(), (0..slots).collect());
    let mut pairs = Vec::new();
    for (block, slot) in pages.iter().take(blocks.min(slots)) {
        let block = free_blocks.swap_remove(block.index(free_blocks.len()));
        pairs.push((block, free_slots.swap_remove(slot.index(free_slots.len()))));
    }
    pairs
}

fn check_bytes(
    engine: &mut dyn CopyEngine,
    drive: &mut dyn FnMut(),
    world: &World,
    direction: CopyDirection,
    pairs: &[(usize, usize)],
) {
    let (engine_after, pool_after) = world.expected(direction, pairs);
    let changes = (engine_after != world.engine_bytes()) || (pool_after != world.pool_bytes());
    assert!(changes, "a copy that changes nothing would prove nothing");
    let progress = submit(engine, world.job(1, direction, pairs));
    let done = drain(engine, drive, 1);
    assert_eq!((done[0].id, done[0].state), (CopyId(1), CopyState::Done));
    assert_eq!(progress.state(), CopyState::Done);
    assert!(!progress.custody());
    assert!(world.engine_bytes() == engine_after, "engine memory, gaps and other blocks included");
    assert!(world.pool_bytes() == pool_after, "pool, other slots included");
}

#[test]
fn a_page_sums_to_its_fragments_in_layer_order() {
    let world = World::new(&[(100, 3), (7, 0), (4096, 1)], 3, 2);
    for_each_engine(|engine, drive| {
        let job = world.job(1, Save, &[(2, 1)]);
        // SAFETY: host memory that nobody writes before the job is submitted.
        let expected = unsafe { crc64_sources(job.steps().iter().map(|step| &step.fragments()[0])) };
        // SAFETY: as above.
        let reversed = unsafe { crc64_sources(job.steps().iter().rev().map(|step| &step.fragments()[0])) };
        submit(engine, job);
        drain(engine, drive, 1);
        let page = page_crc64(&world.pool, world.offset(1), world.layout.page_bytes()).unwrap();
        assert_eq!(page, expected);
        assert_ne!(page, reversed, "control: order matters");
    });
}

/// Layer 0 of the engine is copied to layer 1's source by the first step: step 1 sees it only if it runs after.
#[test]
fn a_step_starts_only_when_the_one_before_is_complete() {
    const BYTES: usize = 3 << 20;
    for_each_engine(|engine, drive| {
        let mut chain: Vec<Vec<u8>> = (0..5).map(|link| vec![link; BYTES]).collect();
        let at: Vec<*mut u8> = chain.iter_mut().map(Vec::as_mut_ptr).collect();
        let steps = at.windows(2).map(|pair| {
            // SAFETY: two vectors of the same length that live until the job is reported.
            Step::new(vec![unsafe { Fragment::new(pair[0], pair[1], BYTES) }])
        });
        let job = CopyJob::new(CopyId(1), Save, steps.collect(), Vec::new()).unwrap();
        let progress = submit(engine, job);
        let mut seen = 0;
        while progress.custody() {
            drive();
            assert!(progress.steps_done() >= seen, "steps never go back");
            seen = progress.steps_done();
        }
        drain(engine, drive, 1);
        assert_eq!(progress.steps_done(), 4);
        assert!(
            chain.iter().all(|link| link.iter().all(|byte| *byte == 0)),
            "the first value went all the way"
        );
    });
}

const LARGE: [Layer; 8] = [(1 << 20, 64); 8];

#[test]
fn no_byte_moves_after_an_abort_returned_true() {
    for_each_engine(|engine, drive| {
        let world = World::new(&LARGE, 4, 4);
        let pairs = [(0, 3), (1, 2), (2, 1), (3, 0)];
        let untouched = world.pool_bytes();
        let (_, complete) = world.expected(Save, &pairs);
        let progress = submit(engine, world.job(1, Save, &pairs));
        while progress.wait_step(0, BRIEF) == WaitOutcome::TimedOut {
            drive();
        }
        stop(&progress, drive);
        let at_abort = world.pool_bytes();
        assert!(!progress.custody());
        let done = drain(engine, drive, 1);
        for _ in 0..20 {
            drive();
        }
        assert!(world.pool_bytes() == at_abort, "a byte moved after the abort");
        assert!(at_abort != untouched, "control: the copy had begun");
        // A fast engine may have been done before the abort; then nothing was stopped, and it must say so.
        let finished = at_abort == complete;
        assert_eq!(done[0].state, progress.state());
        assert!(matches!(progress.state(), CopyState::Aborted) || finished, "{:?}", progress.state());
        assert!(!matches!(progress.state(), CopyState::Done) || finished);
    });
}

#[test]
fn a_job_aborted_before_its_start_moves_nothing_and_is_reported_once() {
    for_each_engine(|engine, drive| {
        let world = World::new(&[(5000, 0)], 2, 2);
        let before = world.pool_bytes();
        let job = world.job(9, Save, &[(0, 0), (1, 1)]);
        assert!(job.progress().abort(Duration::ZERO));
        let progress = submit(engine, job);
        let mut done = drain(engine, drive, 1);
        for _ in 0..20 {
            drive();
            engine.poll(&mut done);
        }
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].id, done[0].state), (CopyId(9), CopyState::Aborted));
        assert_eq!(progress.wait_step(0, BRIEF), WaitOutcome::Aborted);
        assert!(world.pool_bytes() == before);
    });
}

#[test]
fn each_job_is_reported_exactly_once_and_not_before_its_end() {
    for_each_engine(|engine, drive| {
        let world = World::new(&[(40_000, 8), (70_000, 0)], 4, 4);
        let mut reported = Vec::new();
        let mut submitted = 0;
        let mut open: Vec<(CopyId, Arc<Progress>)> = Vec::new();
        while reported.len() < 200 {
            let slot = usize::try_from(submitted).unwrap() % MAX_JOBS;
            let direction = if submitted % 2 == 0 { Save } else { Restore };
            if submitted < 200 && open.len() < MAX_JOBS {
                let job = world.job(submitted, direction, &[(slot, slot)]);
                if submitted % 14 == 0 {
                    job.progress().request_abort();
                }
                let progress = submit(engine, job);
                // This one may come too late, which must be reported as well.
                if submitted % 14 == 7 {
                    progress.request_abort();
                }
                open.push((CopyId(submitted), progress));
                submitted += 1;
                continue;
            }
            drive();
            let mut done = Vec::new();
            engine.poll(&mut done);
            for done in done {
                let at = open.iter().position(|(id, _)| *id == done.id).expect("reported once");
                let (_, progress) = open.swap_remove(at);
                assert!(!progress.custody());
                assert_eq!(progress.state(), done.state);
                reported.push(done);
            }
        }
        assert!(reported.iter().any(|done| done.state == CopyState::Done));
        assert!(reported.iter().any(|done| done.state == CopyState::Aborted));
    });
}

#[test]
fn a_full_engine_gives_the_job_back_and_takes_it_later() {
    for_each_engine(|engine, drive| {
        let world = World::new(&[(64, 0)], 8, 8);
        for id in 0..MAX_JOBS {
            submit(engine, world.job(id as u64, Save, &[(id, id)]));
        }
        // Ended or not, a job holds its place until it is polled.
        for _ in 0..20 {
            drive();
        }
        let refused = engine.submit(world.job(77, Save, &[(7, 7)])).unwrap_err();
        assert_eq!(refused.error, CopyError::Busy { max_jobs: MAX_JOBS });
        assert!(refused.job.progress().custody(), "still to be carried out");
        drain(engine, drive, MAX_JOBS);
        let progress = submit(engine, refused.job);
        drain(engine, drive, 1);
        assert_eq!(progress.state(), CopyState::Done);
    });
}

#[test]
fn a_name_in_use_is_refused_and_its_job_dropped_is_aborted() {
    for_each_engine(|engine, drive| {
        let world = World::new(&[(64, 0)], 2, 2);
        submit(engine, world.job(5, Save, &[(0, 0)]));
        let refused = engine.submit(world.job(5, Save, &[(1, 1)])).unwrap_err();
        assert_eq!(refused.error, CopyError::DuplicateId { id: CopyId(5) });
        let progress = refused.job.progress().clone();
        drop(refused);
        assert_eq!(progress.state(), CopyState::Aborted);
        assert_eq!(drain(engine, drive, 1)[0].state, CopyState::Done, "the first is unharmed");
    });
}

#[test]
fn jobs_without_bytes_cannot_be_made() {
    let (source, mut target) = ([1_u8; 4], [0_u8; 4]);
    // SAFETY: both arrays outlive the test; no engine ever gets these fragments.
    let fragment = |len| unsafe { Fragment::new(source.as_ptr(), target.as_mut_ptr(), len) };
    let mut fragment = fragment;
    let (full, none) = (Step::new(vec![fragment(4)]), Step::new(vec![fragment(4), fragment(0)]));
    let job = |steps| CopyJob::new(CopyId(0), Save, steps, Vec::new());
    assert!(matches!(job(vec![]), Err(JobError::Empty { step: 0 })));
    assert!(matches!(job(vec![full, none]), Err(JobError::Empty { step: 1 })));
    assert!(matches!(job(vec![Step::new(vec![])]), Err(JobError::Empty { step: 0 })));
    let world = World::new(&[(64, 0)], 2, 2);
    assert!(matches!(
        CopyJob::between(CopyId(0), Save, &world.layout, &[]),
        Err(JobError::Empty { step: 0 })
    ));
}

#[test]
fn pairs_outside_their_memory_or_over_each_other_are_refused() {
    let world = World::new(&[(64, 0), (32, 0)], 3, 3);
    let between = |direction, pairs: &[_]| CopyJob::between(CopyId(0), direction, &world.layout, pairs);
    let stray = between(Save, &[world.pair(3, 0)]).unwrap_err();
    assert!(matches!(stray, JobError::NoSuchBlock { block: 3, num_blocks: 3 }), "{stray}");
    let mut outside = world.pair(0, 0);
    outside.offset = world.pool.bytes() - world.layout.page_bytes() + 1;
    assert!(matches!(between(Restore, &[outside]).unwrap_err(), JobError::Page(_)));
    let mut close = world.pair(1, 0);
    close.offset += world.layout.page_bytes() - 1;
    let apart = [world.pair(0, 0), close];
    assert!(matches!(between(Save, &apart), Err(JobError::DestinationTwice { .. })));
    assert!(between(Restore, &apart).is_ok(), "sources may overlap");
    let same_block = [world.pair(1, 0), world.pair(1, 2)];
    assert!(matches!(between(Restore, &same_block), Err(JobError::DestinationTwice { value: 1, .. })));
    assert!(between(Save, &same_block).is_ok());
}
