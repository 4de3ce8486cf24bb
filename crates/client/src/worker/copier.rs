//! The copy thread: takes accepted copies, drives the engine, and tells the manager how they ended.

use super::chores::{Check, Checked, Chores, Sum};
use super::load::{LoadJob, LoadSection};
use super::save::SavePage;
use super::segments::Segment;
use super::state::{Origin, Work};
use super::stats::{add, add_since};
use super::summers::{Summed, Summers};
use super::verify::Verifier;
use crate::ClientError;
use crate::hooks;
use crate::link::Urgency;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::ticket::PagePart;
use orbitkv_copy::{
    CopyDirection, CopyDone, CopyEngine, CopyId, CopyJob, CopyState, KvLayout, PagePair, Progress, page_crc64,
};
use orbitkv_shm::Region;
use orbitkv_wire::ToManager;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Jobs in the engine at once; below the engine's own limit.
pub(super) const MAX_RUNNING: usize = 48;
/// Saves among them: few, so that a restore that comes finds the engine's threads soon.
const MAX_RUNNING_SAVES: usize = 16;
/// How long a page waits for the descriptor of its segment.
const SEGMENT_WAIT: Duration = Duration::from_secs(1);
/// How often something that nobody signals is looked at again.
const RECHECK: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_secs(60);
/// How long a worker that is closed waits for copies of a device before it leaves them to the engine's own end.
const STOP_WAIT: Duration = Duration::from_secs(2);

enum Running {
    /// A restore and the pages of it that are being copied.
    Load(Arc<LoadJob>, Vec<usize>),
    Save(Arc<SavePage>, Arc<Region>, usize),
}

/// A page that may be restored, and whether its checksum is compared while it is copied.
struct Source {
    memory: Arc<Region>,
    offset: usize,
    to_check: bool,
}

/// A page that was copied and is not yet committed.
pub(super) struct Commit {
    pub(super) page: Arc<SavePage>,
    pub(super) crc: u64,
}

pub(super) struct Copier {
    pub(super) work: Arc<Work>,
    /// Dropped when its device is lost, or when its copies do not end.
    engine: Option<Box<dyn CopyEngine>>,
    pub(super) verifier: Verifier,
    running: HashMap<u64, (Arc<Progress>, Running)>,
    pub(super) chores: Chores,
    pub(super) summers: Summers,
    /// Restores whose copies have ended before their checks.
    pub(super) landed: Vec<Arc<LoadJob>>,
    stopping_since: Option<Instant>,
    pub(super) running_saves: usize,
    next_id: u64,
    pub(super) commits: Vec<Commit>,
    /// How many of them have been counted at the hold point.
    pub(super) noted_commits: usize,
    /// Something waits for what nobody signals.
    pub(super) parked: bool,
}

impl Copier {
    pub(super) fn new(
        work: Arc<Work>,
        engine: Box<dyn CopyEngine>,
        verifier: Verifier,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            work,
            engine: Some(engine),
            verifier,
            running: HashMap::new(),
            chores: Chores::default(),
            summers: Summers::start()?,
            landed: Vec::new(),
            stopping_since: None,
            running_saves: 0,
            next_id: 0,
            commits: Vec::new(),
            noted_commits: 0,
            parked: false,
        })
    }

    /// Works until the client is closed and every copy has ended, or been left to the device.
    pub(super) fn run(mut self) {
        loop {
            self.parked = false;
            self.finish_ended();
            self.look_at_device();
            let stopping = self.work.lock().stopping;
            if stopping {
                self.stop_all();
            }
            self.start_loads();
            self.look_at_pins();
            self.start_saves();
            let held = self.do_chores();
            self.send_aborts();
            self.send_commits();
            self.answer_unserved();
            self.answer_fences();
            self.attest_ended_sessions();
            if !held && !self.chores.is_empty() {
                continue;
            }
            if stopping && self.running.is_empty() && self.chores.is_empty() {
                return;
            }
            let idle = self.work.departed_for(Instant::now()).unwrap_or(IDLE);
            self.work.signal.wait(if self.parked { RECHECK } else { idle });
        }
    }

    fn finish_ended(&mut self) {
        let mut ended: Vec<CopyDone> = Vec::new();
        if let Some(engine) = &mut self.engine {
            engine.poll(&mut ended);
        }
        for done in ended {
            match self.running.remove(&done.id.0) {
                Some((_, running)) => self.finish(running, done.state),
                None => debug_assert!(false, "the engine reports each job once"),
            }
        }
    }

    fn finish(&mut self, running: Running, state: CopyState) {
        match running {
            Running::Load(job, pages) => {
                if state != CopyState::Done {
                    pages.iter().for_each(|page| job.fail(*page));
                }
                if job.is_checked() {
                    self.finish_load(&job);
                } else {
                    self.landed.push(job);
                }
            }
            Running::Save(page, region, offset) => {
                self.running_saves -= 1;
                self.finish_save(page, region, offset, state);
            }
        }
    }

    /// A device that is lost takes nothing any more, and may never report what it has.
    fn look_at_device(&mut self) {
        let lost = self.work.cuda.as_ref().is_some_and(|cuda| cuda.handle.is_lost());
        if !lost || self.engine.is_none() {
            return;
        }
        self.work.lose();
        self.drop_engine();
        let session = self.work.lock().session;
        if let Some(session) = session {
            self.work.must(session.number, &ToManager::Attest { passed: false });
        }
    }

    /// Ends the engine. What it cannot vouch for stays in custody as long as the process lives.
    fn drop_engine(&mut self) {
        self.finish_ended();
        drop(self.engine.take());
        for (progress, running) in std::mem::take(&mut self.running).into_values() {
            if !progress.custody() {
                self.finish(running, progress.state());
                continue;
            }
            match running {
                Running::Load(job, _) => self.work.abandon_load(&job),
                Running::Save(page, ..) => {
                    self.running_saves -= 1;
                    self.work.abandon_save(&page);
                }
            }
        }
    }

    pub(super) fn finish_load(&self, job: &LoadJob) {
        if !job.origin.probe {
            let (stats, failures) = (&self.work.stats, job.failures());
            let landed = job.blocks.len() as u64 - failures;
            add(&stats.failed_pages, failures);
            add(&stats.restored_pages, landed);
            add(&stats.restored_bytes, job.landed_bytes());
            add_since(&stats.restore_us, job.accepted);
            if let Some(time) = job.moving_time().filter(|_| failures == 0) {
                add(&stats.timed_bytes, job.bytes());
                add(&stats.timed_us, u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
            }
        }
        // First the books, then the message: whoever hears of the end may look at the counters.
        self.work.end_load(job);
        let origin = job.origin;
        self.work.copy_done(origin);
    }

    fn finish_save(&mut self, page: Arc<SavePage>, region: Arc<Region>, offset: usize, state: CopyState) {
        self.work.end_save(&page);
        if state != CopyState::Done {
            self.give_back(&page);
            return;
        }
        if !page.origin.probe {
            add_since(&self.work.stats.save_us, page.accepted);
        }
        let bytes = page.layout.page_bytes();
        self.chores.sum(Sum { page, target: Summed { region, offset, bytes } });
    }

    /// A save that came to nothing, with no copy running.
    pub(super) fn give_back(&self, page: &SavePage) {
        if !page.origin.probe {
            add(&self.work.stats.aborted_pages, 1);
        }
        self.work.lock().aborts.push((page.origin.session, page.part.slot()));
    }

    fn stop_all(&mut self) {
        for (_, running) in self.running.values() {
            match running {
                Running::Load(job, _) => job.request_abort(),
                Running::Save(page, ..) => page.request_abort(),
            }
        }
        if self.work.cuda.is_none() || self.running.is_empty() {
            return;
        }
        // Copies of a device may be queued behind work that does not end.
        if self.stopping_since.get_or_insert_with(Instant::now).elapsed() >= STOP_WAIT {
            self.drop_engine();
        }
        self.parked = true;
    }

    fn start_loads(&mut self) {
        let held = hooks::is_held(hooks::COPY_RESTORE);
        let mut later = Vec::new();
        while self.running.len() < MAX_RUNNING {
            // Not in the loop's head: the lock would be held all through its body.
            let next = self.work.lock().loads.pop_front();
            let Some(job) = next else { break };
            if job.wants_abort() || self.work.bars(&job) {
                job.fail_all();
                self.finish_load(&job);
            } else if held && !job.origin.probe {
                note(&job.noted, hooks::COPY_RESTORE);
                self.parked = true;
                later.push(job);
            } else if !job.has_memory() && self.awaits_segment(&job.parts, job.accepted) {
                later.push(job);
            } else {
                self.start_load(&job);
            }
        }
        let mut inner = self.work.lock();
        later.into_iter().rev().for_each(|job| inner.loads.push_front(job));
    }

    /// Whether a descriptor that may still come is missing.
    pub(super) fn awaits_segment(&mut self, parts: &[PagePart], accepted: Instant) -> bool {
        let inner = self.work.lock();
        let waits = accepted.elapsed() < SEGMENT_WAIT
            && parts.iter().any(|part| !inner.segments.contains_key(&part.segment));
        self.parked |= waits;
        waits
    }

    fn start_load(&mut self, job: &Arc<LoadJob>) {
        let fault = hooks::switch(hooks::RESTORE_FAULT);
        let segments = job.take_memory();
        let (mut pages, mut groups, mut checks) = (Vec::new(), Vec::new(), Vec::new());
        for LoadSection { layout, pages: places } in &job.sections {
            let mut pairs = Vec::with_capacity(places.len());
            for i in places.clone() {
                let segment = segments.get(i).cloned().flatten();
                let source = segment.and_then(|segment| self.source(job, layout, &job.parts[i], segment));
                let Some(Source { memory, offset, to_check }) = source else {
                    job.fail(i);
                    continue;
                };
                if to_check {
                    let of = Checked::Load(Arc::clone(job));
                    let source = Summed { region: memory.clone(), offset, bytes: layout.page_bytes() };
                    checks.push(Check { of, page: i, part: job.parts[i], source });
                }
                pages.push(i);
                pairs.push(PagePair { block: job.blocks[i] as usize, memory, offset });
            }
            match fault.as_deref() {
                Some("skip") => pairs.clear(),
                Some("zero") => zero_sources(&mut pairs, layout.page_bytes()),
                _ => {}
            }
            if !pairs.is_empty() {
                groups.push((layout, pairs));
            }
        }
        let groups: Vec<_> = groups.iter().map(|(layout, pairs)| (&***layout, &pairs[..])).collect();
        if groups.is_empty() {
            self.finish_load(job);
        } else if let Some((id, progress)) = self.submit_load(job, &groups) {
            self.running.insert(id, (Arc::clone(&progress), Running::Load(Arc::clone(job), pages)));
            if checks.is_empty() {
                job.set_checked();
            }
            checks.into_iter().for_each(|check| self.chores.check(check));
            job.submitted(progress);
        } else {
            job.fail_all();
            self.finish_load(job);
        }
    }

    fn submit_load(
        &mut self,
        job: &LoadJob,
        groups: &[(&KvLayout, &[PagePair])],
    ) -> Option<(u64, Arc<Progress>)> {
        let made = CopyJob::between_groups(self.take_id(), CopyDirection::Restore, groups);
        let mut copy = made.ok()?.after(job.order.clone());
        if let Some(cuda) = &self.work.cuda {
            job.set_layers(cuda.handle.layer_events(&mut copy).ok()?);
        }
        let (id, progress) = (copy.id().0, Arc::clone(copy.progress()));
        self.engine.as_mut()?.submit(copy).ok()?;
        Some((id, progress))
    }

    /// Where a page comes from, if it may be restored.
    fn source(
        &mut self,
        job: &LoadJob,
        layout: &KvLayout,
        part: &PagePart,
        segment: Segment,
    ) -> Option<Source> {
        let page_bytes = layout.page_bytes();
        let offset = segment.payload(part.index, page_bytes)?;
        // The self-test must not depend on luck, nor move the sample.
        let selected = job.origin.probe || (!job.was_pinned && self.verifier.selects());
        // The engine waits for a device's copies to be queued, so there checksums are compared after that.
        let to_check = selected && self.work.cuda.is_some() && !job.origin.probe;
        let crc = || page_crc64(&segment.region, offset, page_bytes).ok();
        if selected && !to_check && !self.is_sound(job.origin, part, crc()) {
            return None;
        }
        let planned_failure = !job.origin.probe && !job.was_pinned && hooks::count_down(hooks::FAIL_PAGE);
        (!planned_failure).then_some(Source { memory: segment.region, offset, to_check })
    }

    fn start_saves(&mut self) {
        let held = hooks::is_held(hooks::COPY_SAVE);
        let mut later = Vec::new();
        while self.running_saves < MAX_RUNNING_SAVES {
            let next = self.work.lock().saves.pop_front();
            let Some(page) = next else { break };
            if !page.is_queued() {
                // Given up; its slot is among the aborts.
            } else if held && !page.origin.probe {
                note(&page.noted, hooks::COPY_SAVE);
                self.parked = true;
                later.push(page);
            } else if self.awaits_segment(&[page.part], page.accepted) {
                later.push(page);
            } else {
                self.start_save(page);
            }
        }
        let mut inner = self.work.lock();
        later.into_iter().rev().for_each(|page| inner.saves.push_front(page));
    }

    fn start_save(&mut self, page: Arc<SavePage>) {
        if self.work.is_void(page.origin) {
            self.work.give_up_queued(&page);
            return;
        }
        let segment = self.work.segments_of(page.origin, &[page.part]).pop().flatten();
        // Given up since, or from now on whoever wants it stopped waits for its progress.
        if !page.start() {
            return;
        }
        let target = segment.and_then(|segment| {
            let offset = segment.payload(page.part.index, page.layout.page_bytes())?;
            Some((segment.region, offset))
        });
        let made = target.and_then(|(memory, offset)| {
            let pair = PagePair { block: page.block as usize, memory: Arc::clone(&memory), offset };
            let copy = CopyJob::at_once(self.take_id(), CopyDirection::Save, &page.layout, &[pair]).ok()?;
            Some((copy.after(page.order.clone()), memory, offset))
        });
        let Some((copy, memory, offset)) = made else {
            self.work.end_save(&page);
            self.give_back(&page);
            return;
        };
        let (id, progress) = (copy.id().0, Arc::clone(copy.progress()));
        let taken = self.engine.as_mut().is_some_and(|engine| engine.submit(copy).is_ok());
        if !taken {
            self.work.end_save(&page);
            self.give_back(&page);
            return;
        }
        self.running_saves += 1;
        page.submitted(Arc::clone(&progress));
        // Lost its session, or was fenced, while it was on its way here: nobody found a progress to stop.
        if self.work.is_void(page.origin) {
            page.request_abort();
        }
        self.running.insert(id, (progress, Running::Save(page, memory, offset)));
    }

    fn take_id(&mut self) -> CopyId {
        self.next_id += 1;
        CopyId(self.next_id)
    }
}

impl Work {
    /// One for every restore accepted, or refused for want of room.
    pub(super) fn copy_done(&self, origin: Origin) {
        let Origin { scheduler, operation, revision, .. } = origin;
        self.must(origin.session, &ToManager::CopyDone { session: scheduler, operation, revision });
    }

    /// Sends what must arrive, if its session is the present one.
    pub(super) fn must(&self, session: u64, message: &ToManager<'_>) -> bool {
        self.link.send(session, (0, 0), message, Urgency::Must).is_ok()
    }
}

/// Counts an arrival at a hold point, once.
fn note(noted: &AtomicBool, name: &str) {
    if !noted.swap(true, Ordering::AcqRel) {
        hooks::note_reached(name);
    }
}

/// Replaces every source by a page of zeros; for a test that must see it.
fn zero_sources(pairs: &mut [PagePair], page_bytes: usize) {
    let bytes = page_bytes.next_multiple_of(orbitkv_shm::PAGE_BYTES);
    if let Ok(zeros) = orbitkv_shm::Segment::create("zeros", bytes) {
        for pair in pairs {
            pair.memory = Arc::clone(zeros.region());
            pair.offset = 0;
        }
    }
}
