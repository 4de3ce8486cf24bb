//! One copy of some blocks' KV.

use std::ptr;
use std::sync::Arc;

use orbitkv_shm::{Region, ShmError};

use crate::cuda::{Layers, PooledEvent};
use crate::{Fragment, KvLayout, Progress, Step, StreamOrder};

/// Most fragments in a job: 24 MiB of descriptors. 8K tokens of a 36-layer model in 64-token pages are 4,608.
pub const MAX_FRAGMENTS: usize = 1 << 20;

/// Name of a job, chosen by its submitter and unique among the jobs of an engine not yet reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(pub u64);

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// From the serving engine's memory into pool pages.
    Save,
    /// From pool pages into the serving engine's memory.
    Restore,
}

/// One block of the serving engine and the pool page that holds, or is to hold, its KV.
#[derive(Debug, Clone)]
pub struct PagePair {
    /// Block index in every region of the layout.
    pub block: usize,
    /// The mapped segment of the page; the job keeps it mapped until its bytes can no longer move.
    pub memory: Arc<Region>,
    /// Offset of the page's payload in `memory`, in bytes.
    pub offset: usize,
}

/// Why a job cannot be.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Nothing to copy: no step, a step without fragments, or a fragment without bytes.
    #[error("the job has nothing to copy in step {step}: leave out empty jobs, steps and fragments")]
    Empty {
        /// The first such step.
        step: usize,
    },
    /// More fragments than an engine should be given at once.
    #[error("the job has {count} fragments, more than {MAX_FRAGMENTS}: split it by pages")]
    TooManyFragments {
        /// Number of fragments.
        count: usize,
    },
    /// A block that the layout does not have.
    #[error("block {block} is not among the layout's {num_blocks} blocks")]
    NoSuchBlock {
        /// The block asked for.
        block: usize,
        /// Blocks of the layout.
        num_blocks: usize,
    },
    /// Two pairs would write the same bytes at the same time.
    #[error("{what} {value} is written by two pairs of the same job: give each destination once")]
    DestinationTwice {
        /// `block`, or `page at offset`.
        what: &'static str,
        /// Block index, or offset of the page.
        value: usize,
    },
    /// The page is not inside its segment, or the segment may not be written.
    #[error(transparent)]
    Page(#[from] ShmError),
}

/// A copy of some blocks' KV, in steps that run one after the other: step `l` is complete before `l + 1` starts.
///
/// Dropped before an engine has finished it, a job moves no further byte, and its progress says `Aborted`.
#[derive(Debug)]
pub struct CopyJob {
    id: CopyId,
    direction: CopyDirection,
    steps: Vec<Step>,
    progress: Arc<Progress>,
    order: StreamOrder,
    /// Events of the steps, for those who let a stream wait for one.
    layers: Option<Arc<Layers>>,
    /// Keeps the pages mapped; the addresses in `steps` point into them.
    memory: Vec<Arc<Region>>,
}

impl CopyJob {
    /// A job of given steps; `memory` stays mapped until the job is dropped.
    pub fn new(
        id: CopyId,
        direction: CopyDirection,
        steps: Vec<Step>,
        memory: Vec<Arc<Region>>,
    ) -> Result<CopyJob, JobError> {
        let empty =
            |step: &Step| step.fragments().is_empty() || step.fragments().iter().any(|f| f.bytes() == 0);
        if let Some(step) = steps.iter().position(empty) {
            return Err(JobError::Empty { step });
        }
        if steps.is_empty() {
            return Err(JobError::Empty { step: 0 });
        }
        let count = steps.iter().map(|step| step.fragments().len()).sum();
        if count > MAX_FRAGMENTS {
            return Err(JobError::TooManyFragments { count });
        }
        let progress = Arc::new(Progress::new(steps.len()));
        let order = StreamOrder::default();
        Ok(CopyJob { id, direction, steps, progress, order, layers: None, memory })
    }

    /// A job between blocks and pages: one step a layer, in the layout's order.
    pub fn between(
        id: CopyId,
        direction: CopyDirection,
        layout: &KvLayout,
        pairs: &[PagePair],
    ) -> Result<CopyJob, JobError> {
        Self::between_groups(id, direction, &[(layout, pairs)])
    }

    /// The same for several cache groups: the steps of one after those of another. Their blocks must be
    /// different memory.
    pub fn between_groups(
        id: CopyId,
        direction: CopyDirection,
        groups: &[(&KvLayout, &[PagePair])],
    ) -> Result<CopyJob, JobError> {
        let fragments =
            groups.iter().map(|(layout, pairs)| pairs.len().saturating_mul(layout.regions().len()));
        let count = fragments.fold(0, usize::saturating_add);
        if count > MAX_FRAGMENTS {
            return Err(JobError::TooManyFragments { count });
        }
        let mut steps = Vec::new();
        for (layout, pairs) in groups {
            steps.append(&mut Self::steps_between(direction, layout, pairs)?);
        }
        let pairs = groups.iter().flat_map(|(_, pairs)| pairs.iter());
        let mut memory: Vec<_> = pairs.map(|pair| pair.memory.clone()).collect();
        memory.sort_unstable_by_key(Arc::as_ptr);
        memory.dedup_by(|a, b| Arc::ptr_eq(a, b));
        CopyJob::new(id, direction, steps, memory)
    }

    /// The same in one step: for those who wait for no single layer. Small fragments of all layers then share their
    /// calls of a driver.
    pub fn at_once(
        id: CopyId,
        direction: CopyDirection,
        layout: &KvLayout,
        pairs: &[PagePair],
    ) -> Result<CopyJob, JobError> {
        let mut job = Self::between(id, direction, layout, pairs)?;
        let fragments = job.steps.iter().flat_map(|step| step.fragments().iter().copied()).collect();
        job.steps = vec![Step::new(fragments)];
        job.progress = Arc::new(Progress::new(1));
        Ok(job)
    }

    /// The steps of one group. They are safe to carry out while the memory of `pairs` stays mapped.
    fn steps_between(
        direction: CopyDirection,
        layout: &KvLayout,
        pairs: &[PagePair],
    ) -> Result<Vec<Step>, JobError> {
        let mut pages = Vec::with_capacity(pairs.len());
        for pair in pairs {
            if pair.block >= layout.num_blocks() {
                return Err(JobError::NoSuchBlock { block: pair.block, num_blocks: layout.num_blocks() });
            }
            if direction == CopyDirection::Save && !pair.memory.is_writable() {
                return Err(ShmError::ReadOnly.into());
            }
            pages.push(pair.memory.range_ptr(pair.offset, layout.page_bytes())?);
        }
        match direction {
            CopyDirection::Save => check_pages_apart(&pages, pairs, layout.page_bytes())?,
            CopyDirection::Restore => check_blocks_apart(pairs)?,
        }
        let mut steps = Vec::with_capacity(layout.regions().len());
        let mut layer_offset = 0;
        for region in layout.regions() {
            let fragments = pairs.iter().zip(&pages).map(|(pair, page)| {
                let block = ptr::with_exposed_provenance_mut::<u8>(region.block_address(pair.block));
                // SAFETY: a page has `page_bytes` (checked above) and this layer's part lies inside them.
                let payload = unsafe { page.add(layer_offset) };
                let (src, dst) = match direction {
                    CopyDirection::Save => (block, payload),
                    CopyDirection::Restore => (payload, block),
                };
                // SAFETY: the block is valid by the promise of `KvLayout::new`, the payload because the job keeps
                // its segment mapped; they are different memory, and no destination occurs twice (checked above).
                unsafe { Fragment::new(src, dst, region.block_bytes) }
            });
            steps.push(Step::new(fragments.collect()));
            layer_offset += region.block_bytes;
        }
        Ok(steps)
    }

    /// The job's name.
    #[must_use]
    pub fn id(&self) -> CopyId {
        self.id
    }

    /// Which way the bytes go.
    #[must_use]
    pub fn direction(&self) -> CopyDirection {
        self.direction
    }

    /// The steps, in the order in which they run.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Lets the first byte move only after `order`. Engines of host memory do not look at it.
    #[must_use]
    pub fn after(mut self, order: StreamOrder) -> CopyJob {
        self.order = order;
        self
    }

    /// What the first byte comes after.
    #[must_use]
    pub fn order(&self) -> &StreamOrder {
        &self.order
    }

    /// The segments that the job keeps mapped.
    #[must_use]
    pub fn memory(&self) -> &[Arc<Region>] {
        &self.memory
    }

    pub(crate) fn set_layers(&mut self, layers: Arc<Layers>) {
        self.layers = Some(layers);
    }

    /// The event to record at the end of `step`, if somebody may wait for it.
    pub(crate) fn layer_event(&self, step: usize) -> Option<Arc<PooledEvent>> {
        self.layers.as_ref().and_then(|layers| layers.event(step))
    }

    /// The record of the next step's event has returned.
    pub(crate) fn note_layer_recorded(&self) {
        if let Some(layers) = &self.layers {
            layers.note_recorded();
        }
    }

    /// No further event will be recorded.
    pub(crate) fn close_layers(&self) {
        if let Some(layers) = &self.layers {
            layers.close();
        }
    }

    /// How far the job is; outlives it.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl Drop for CopyJob {
    fn drop(&mut self) {
        self.progress.request_abort();
        self.close_layers();
    }
}

/// Refuses pages that share bytes: two layers of different blocks would be copied into them at the same time.
fn check_pages_apart(pages: &[*mut u8], pairs: &[PagePair], page_bytes: usize) -> Result<(), JobError> {
    let mut starts: Vec<_> = pages.iter().map(|page| page.addr()).zip(pairs).collect();
    starts.sort_unstable_by_key(|(start, _)| *start);
    for pair in starts.windows(2) {
        if let [(first, _), (second, at)] = pair
            && second - first < page_bytes
        {
            return Err(JobError::DestinationTwice { what: "page at offset", value: at.offset });
        }
    }
    Ok(())
}

fn check_blocks_apart(pairs: &[PagePair]) -> Result<(), JobError> {
    let mut blocks: Vec<_> = pairs.iter().map(|pair| pair.block).collect();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        if let [first, second] = pair
            && first == second
        {
            return Err(JobError::DestinationTwice { what: "block", value: *first });
        }
    }
    Ok(())
}
