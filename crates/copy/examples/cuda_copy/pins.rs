//! What registration costs, with small pages and with huge ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_copy::{CudaDriver, CudaProbe};
use orbitkv_shm::{PAGE_BYTES, Segment};
use serde_json::{Value, json};

use crate::samples::{Samples, text};
use crate::{Failure, Settings};

/// What one call registers.
const CHUNK_BYTES: usize = 128 << 20;
const REPEATS: usize = 5;

pub(crate) fn measure(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Value, Failure> {
    let probe = CudaProbe::new(driver, settings.device)?;
    let bytes = (settings.bytes * 4).next_multiple_of(CHUNK_BYTES).min(4 << 30);
    let mut rows = Vec::new();
    for (name, huge) in [("4 KiB pages", false), ("huge pages", true)] {
        let segment = Segment::create("measured", bytes)?;
        let mut huge_bytes = 0;
        if huge {
            huge_bytes = segment.populate(8)?;
        } else {
            // Touched one by one: memory of a memfd is in small pages unless root says otherwise.
            for page in (0..bytes).step_by(PAGE_BYTES) {
                segment.write_at(page, &[1])?;
            }
        }
        let (mut all, mut worst, mut back) = (Samples::default(), Duration::ZERO, Samples::default());
        for _ in 0..REPEATS {
            let start = Instant::now();
            for offset in (0..bytes).step_by(CHUNK_BYTES) {
                let call = Instant::now();
                // SAFETY: the segment lives until its chunks are unregistered below.
                unsafe {
                    probe.register(segment.as_ptr().wrapping_add(offset), CHUNK_BYTES.min(bytes - offset))
                }?;
                worst = worst.max(call.elapsed());
            }
            all.push(start.elapsed());
            let start = Instant::now();
            for offset in (0..bytes).step_by(CHUNK_BYTES) {
                probe.unregister(segment.as_ptr().wrapping_add(offset))?;
            }
            back.push(start.elapsed());
        }
        let (register, unregister) = (all.millis_per_gib(bytes), back.millis_per_gib(bytes));
        println!(
            "registration, {name} ({huge_bytes} of {bytes} bytes in huge pages): {} ms/GiB, undone {} ms/GiB, \
             worst call of 128 MiB {:.1} ms",
            text(&register),
            text(&unregister),
            worst.as_secs_f64() * 1e3
        );
        rows.push(json!({
            "pages": name,
            "bytes": bytes,
            "huge_bytes": huge_bytes,
            "register_ms_per_gib": register,
            "unregister_ms_per_gib": unregister,
            "worst_call_ms": worst.as_secs_f64() * 1e3,
        }));
    }
    Ok(rows.into())
}
