//! A serving engine's memory and a pool, with every byte accounted for.

// Each test program uses its part of this.
#![allow(dead_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use orbitkv_copy::{
    CopyDirection, CopyDone, CopyEngine, CopyId, CopyJob, KvLayout, KvRegion, PagePair, Progress,
};
use orbitkv_shm::{Mapping, Region, Segment};

/// Sizes of one layer: bytes of a block, unused bytes between blocks.
pub(crate) type Layer = (usize, usize);

/// Memory of both sides, filled with bytes that differ by place and side.
pub(crate) struct World {
    _segment: Segment,
    pub(crate) pool: Arc<Region>,
    pub(crate) layout: KvLayout,
    engine: Vec<Box<[u8]>>,
    /// Addresses of `engine`, exposed once: a later `&mut` of the boxes would void what the layout was told.
    bases: Vec<*mut u8>,
    slot_bytes: usize,
}

impl World {
    pub(crate) fn new(layers: &[Layer], num_blocks: usize, slots: usize) -> World {
        let mut engine: Vec<Box<[u8]>> = Vec::new();
        for (layer, (block_bytes, gap_bytes)) in layers.iter().enumerate() {
            let bytes = (block_bytes + gap_bytes) * num_blocks;
            engine.push((0..bytes).map(|at| mix(layer * 1_000_003 + at, 1)).collect());
        }
        let bases: Vec<*mut u8> = engine.iter_mut().map(|layer| layer.as_mut_ptr()).collect();
        let regions = layers.iter().zip(&bases).map(|((block_bytes, gap_bytes), base)| KvRegion {
            base: base.expose_provenance(),
            block_stride_bytes: block_bytes + gap_bytes,
            block_bytes: *block_bytes,
            num_blocks,
        });
        // SAFETY: the boxes live as long as the world, which every test drops after its engine, and are touched
        // through `bases` only; blocks do not overlap, as the stride includes the block.
        let layout = unsafe { KvLayout::new(regions.collect()) }.unwrap();
        // An odd offset between slots, so that nothing is aligned by luck.
        let slot_bytes = layout.page_bytes() + 13;
        let bytes = (slots * slot_bytes).next_multiple_of(4096);
        let segment = Segment::create("pool", bytes).unwrap();
        let mapping = Mapping::from_fd(segment.as_fd().try_clone_to_owned().unwrap(), bytes).unwrap();
        let fill: Vec<u8> = (0..bytes).map(|at| mix(at, 2)).collect();
        segment.write_at(0, &fill).unwrap();
        World { pool: mapping.region().clone(), _segment: segment, layout, engine, bases, slot_bytes }
    }

    pub(crate) fn pair(&self, block: usize, slot: usize) -> PagePair {
        PagePair { block, memory: self.pool.clone(), offset: self.offset(slot) }
    }

    pub(crate) fn offset(&self, slot: usize) -> usize {
        slot * self.slot_bytes
    }

    pub(crate) fn job(&self, id: u64, direction: CopyDirection, pairs: &[(usize, usize)]) -> CopyJob {
        let pairs: Vec<_> = pairs.iter().map(|(block, slot)| self.pair(*block, *slot)).collect();
        CopyJob::between(CopyId(id), direction, &self.layout, &pairs).unwrap()
    }

    /// All bytes of the serving engine, one vector a layer.
    pub(crate) fn engine_bytes(&self) -> Vec<Vec<u8>> {
        let layers = self.bases.iter().zip(&self.engine);
        // SAFETY: `base` is valid for the box's length; tests call this when no copy can be running in the range, or
        // to show that none does.
        layers
            .map(|(base, layer)| unsafe { std::slice::from_raw_parts(*base, layer.len()) }.to_vec())
            .collect()
    }

    pub(crate) fn pool_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.pool.bytes()];
        self.pool.read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// What both sides must hold once `pairs` are copied, computed without the code under test.
    pub(crate) fn expected(
        &self,
        direction: CopyDirection,
        pairs: &[(usize, usize)],
    ) -> (Vec<Vec<u8>>, Vec<u8>) {
        let (mut engine, mut pool) = (self.engine_bytes(), self.pool_bytes());
        for (block, slot) in pairs {
            let mut page_at = self.offset(*slot);
            for (layer, region) in engine.iter_mut().zip(self.layout.regions()) {
                let start = block * region.block_stride_bytes;
                let block_part = &mut layer[start..start + region.block_bytes];
                let page_part = &mut pool[page_at..page_at + region.block_bytes];
                match direction {
                    CopyDirection::Save => page_part.copy_from_slice(block_part),
                    CopyDirection::Restore => block_part.copy_from_slice(page_part),
                }
                page_at += region.block_bytes;
            }
        }
        (engine, pool)
    }
}

/// Drives `engine` until `count` jobs have been reported in all.
pub(crate) fn drain(engine: &mut dyn CopyEngine, drive: &mut dyn FnMut(), count: usize) -> Vec<CopyDone> {
    let mut done = Vec::new();
    engine.poll(&mut done);
    while done.len() < count {
        drive();
        engine.poll(&mut done);
    }
    done
}

/// Submits and returns the progress.
pub(crate) fn submit(engine: &mut dyn CopyEngine, job: CopyJob) -> Arc<Progress> {
    let progress = job.progress().clone();
    engine.submit(job).unwrap();
    progress
}

/// A byte that depends on every bit of its place, and never equals one of the other side.
fn mix(at: usize, side: u64) -> u8 {
    let hashed = (at as u64 + side * 0x1234_5678_9abc).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hashed >> 56) as u8 ^ (hashed >> 31) as u8) & !1 | (side & 1) as u8
}
