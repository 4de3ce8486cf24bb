//! Whether the copy kernel can be trusted here.

use std::sync::Arc;

use super::context::{Context, DeviceMemory, Event};
use super::error::CudaError;
use super::kernel::Kernel;
use super::lists::{Listed, Lists};
use super::self_test::{LIMIT, ends};
use super::staging::Registered;
use super::stream::{Piece, Stream, Way};

/// Words of all widths, parts of a slice, whole ones and several.
const SIZES: [usize; 12] = [1, 3, 4, 15, 16, 31, 512, 1000, 4096, 4100, 8191, 12_304];
/// Offsets of the host's and the device's side.
const SHIFTS: [(usize, usize); 5] = [(0, 0), (16, 48), (4, 8), (1, 0), (8, 3)];
const PIECES: usize = SIZES.len() * SHIFTS.len();
/// Room for a piece and for guards around it.
const CELL_BYTES: usize = 16 << 10;
const IMAGE_BYTES: usize = PIECES * CELL_BYTES;
const GUARD: u8 = 0xEE;
/// The second has to read what was written after the first.
const ROUNDS: usize = 2;

/// Why the copy kernel is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelRefusal {
    /// The configuration says so.
    #[error("the copy kernel is switched off by configuration")]
    Configured,
    /// The driver lacks a function.
    #[error("the driver cannot load kernels: use a driver for CUDA 12.0 or later")]
    Missing,
    /// It cannot be compiled or launched.
    #[error("the copy kernel fails: {0}")]
    Failed(#[from] CudaError),
    /// It ran, and other bytes arrived, or bytes elsewhere.
    #[error("the copy kernel delivers wrong bytes here ({wrong} of {of}): report it with nvidia-smi -q")]
    WrongBytes {
        /// Bytes that are wrong, those around the copies included.
        wrong: usize,
        /// Bytes looked at.
        of: usize,
    },
    /// The copies did not end.
    #[error("the copy kernel does not end within {} s", LIMIT.as_secs())]
    Stuck,
}

/// All that the test moves bytes between.
struct Bench {
    /// Three images: what is sent, what comes back, and all of the device's memory.
    host: Registered,
    memory: DeviceMemory,
    lists: Lists,
    stream: Stream,
    event: Event,
}

#[derive(Clone, Copy)]
enum Image {
    Source = 0,
    Target = 1,
    Device = 2,
}

/// Compiles the kernel, copies pieces of many shapes to the device and back, and compares them and what is around them.
pub(super) fn run(context: &Arc<Context>, ctas: u32) -> Result<Arc<Kernel>, KernelRefusal> {
    let kernel = Arc::new(Kernel::load(context, ctas)?);
    let mut bench = Bench {
        host: Registered::create(context, 3 * IMAGE_BYTES)?,
        memory: DeviceMemory::allocate(context, IMAGE_BYTES)?,
        lists: Lists::create(context, &kernel)?,
        stream: Stream::create(context, false)?,
        event: Event::create(context)?,
    };
    for round in 0..ROUNDS {
        bench.fill(round);
        let ended = bench.exchange(context);
        if !matches!(ended, Ok(true)) {
            // Bytes may still move: what they move between is never given back.
            std::mem::forget((bench, kernel));
            return Err(ended.map_or_else(KernelRefusal::Failed, |_| KernelRefusal::Stuck));
        }
        let wrong = bench.wrong_bytes(round);
        if wrong > 0 {
            return Err(KernelRefusal::WrongBytes { wrong, of: 2 * IMAGE_BYTES });
        }
    }
    Ok(kernel)
}

/// Length of a piece, and where it begins on the host and on the device.
fn place(piece: usize) -> (usize, usize, usize) {
    let (host, device) = SHIFTS[piece / SIZES.len()];
    // In the middle, so that what is written before or behind it is seen.
    let cell = piece * CELL_BYTES + 1024;
    (SIZES[piece % SIZES.len()], cell + host, cell + device)
}

/// A byte that depends on its place and round.
fn byte(at: usize, round: usize) -> u8 {
    ((at + round * IMAGE_BYTES + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

impl Bench {
    fn start(&self, image: Image) -> *mut u8 {
        self.host.start().wrapping_add(image as usize * IMAGE_BYTES)
    }

    fn image(&self, image: Image) -> &[u8] {
        // SAFETY: inside the memory, and no copy is under way.
        unsafe { std::slice::from_raw_parts(self.start(image), IMAGE_BYTES) }
    }

    fn fill(&self, round: usize) {
        // SAFETY: as above; nobody else has a reference.
        let (source, others) = unsafe {
            let source = std::slice::from_raw_parts_mut(self.start(Image::Source), IMAGE_BYTES);
            (source, std::slice::from_raw_parts_mut(self.start(Image::Target), 2 * IMAGE_BYTES))
        };
        source.iter_mut().enumerate().for_each(|(at, place)| *place = byte(at, round));
        others.fill(GUARD);
    }

    /// There and back; false if it does not end.
    fn exchange(&mut self, context: &Arc<Context>) -> Result<bool, CudaError> {
        let host_on_device = self.host.device_start()?;
        let listed = |image: Image| -> Vec<Listed> {
            let listed = |piece| {
                let (bytes, host, device) = place(piece);
                let offset = image as usize * IMAGE_BYTES + host;
                Listed {
                    piece: Piece {
                        host: self.host.start().wrapping_add(offset),
                        device: self.memory.start() + device as u64,
                        bytes,
                    },
                    host_on_device: host_on_device + offset as u64,
                }
            };
            (0..PIECES).map(listed).collect()
        };
        let (there, back) = (listed(Image::Source), listed(Image::Target));
        let whole =
            Piece { host: self.start(Image::Device), device: self.memory.start(), bytes: IMAGE_BYTES };
        let (mut taken, _entered) = (0, context.enter()?);
        let handle = self.stream.handle();
        // SAFETY: all of this lives until the event is complete, or for ever.
        unsafe {
            self.stream.copy(Way::ToDevice, whole)?;
            for (way, pieces) in [(Way::ToDevice, there), (Way::ToHost, back)] {
                if let Some(list) = self.lists.put(way, &pieces) {
                    taken += list.taken;
                    self.lists.launch(handle, &list)?;
                }
            }
            self.stream.copy(Way::ToHost, whole)?;
        }
        context.record(&self.event, handle)?;
        let ended = ends(&self.event)?;
        if ended {
            // The next round writes its lists where these were.
            self.lists.give_back(taken);
        }
        Ok(ended)
    }

    /// Bytes of what came back and of the device's memory that are not as they must be.
    fn wrong_bytes(&self, round: usize) -> usize {
        let (mut target, mut device) = (vec![GUARD; IMAGE_BYTES], vec![GUARD; IMAGE_BYTES]);
        for piece in 0..PIECES {
            let (bytes, host_at, device_at) = place(piece);
            for offset in 0..bytes {
                let value = byte(host_at + offset, round);
                target[host_at + offset] = value;
                device[device_at + offset] = value;
            }
        }
        let count =
            |expected: &[u8], found: &[u8]| expected.iter().zip(found).filter(|(a, b)| a != b).count();
        count(&target, self.image(Image::Target)) + count(&device, self.image(Image::Device))
    }
}
