//! What copies cost a model that decodes: time to read 2 GiB of device memory, alone and beside copies that never stop.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{CopyDirection, CopyMethod, CudaDriver, CudaProbe, ProbeFunction, ProbeMemory};
use serde_json::{Value, json};

use crate::bench::{KIB, Rig};
use crate::samples::{Samples, round, text};
use crate::{Failure, Settings};

const SOURCE: &str = concat!(include_str!("read_memory.ptx"), "\0");
const NAME: &CStr = c"read_memory";
const BYTES: usize = 2 << 30;
const READS: usize = 300;
/// Fills the multiprocessors of the largest device.
const GRID: (u32, u32) = (148 * 8, 256);
const COPIES: [(usize, CopyMethod); 5] = [
    (4, CopyMethod::Batch),
    (4, CopyMethod::Kernel),
    (16, CopyMethod::Batch),
    (16, CopyMethod::Kernel),
    (64, CopyMethod::Batch),
];
/// Copied in one job.
const COPIED_BYTES: usize = 64 << 20;

/// Reads memory on a stream of the lowest priority, where serving engines compute.
struct Reader {
    probe: CudaProbe,
    function: ProbeFunction,
    memory: ProbeMemory,
}

impl Reader {
    fn new(driver: &Arc<CudaDriver>, device: u32) -> Result<Reader, Failure> {
        let probe = CudaProbe::new(driver, device)?;
        let function = probe.load(CStr::from_bytes_until_nul(SOURCE.as_bytes())?, NAME)?;
        let memory = probe.allocate(BYTES)?;
        Ok(Reader { probe, function, memory })
    }

    fn samples(&self) -> Result<Samples, Failure> {
        let mut samples = Samples::default();
        for read in 0..READS + 20 {
            let start = Instant::now();
            let arguments = [self.memory.address() as u64, (BYTES / 16) as u64];
            // SAFETY: the two arguments of the source, and memory that lives as long as this.
            unsafe { self.probe.launch(&self.function, GRID, &arguments) }?;
            self.probe.finish()?;
            if read >= 20 {
                samples.push(start.elapsed());
            }
        }
        Ok(samples)
    }
}

pub(crate) fn measure(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Vec<Value>, Failure> {
    let reader = match Reader::new(driver, settings.device) {
        Ok(reader) => reader,
        Err(error) => {
            println!("what copies cost a model was not measured: {error}");
            return Ok(Vec::new());
        }
    };
    let mut rows = Vec::new();
    report(&mut rows, &json!({ "beside": "nothing" }), &reader.samples()?, 0.0);
    for (kib, method) in COPIES {
        for direction in [Restore, Save] {
            if settings.is_late() {
                continue;
            }
            let mut rig =
                Rig::new(driver, (settings, COPIED_BYTES), &reader.probe, (kib * KIB, method, true))?;
            let (samples, copied_gb_s) = beside(&reader, &mut rig, direction)?;
            let what = json!({
                "beside": method.to_string(),
                "fragment_bytes": kib * KIB,
                "direction": format!("{direction:?}"),
            });
            report(&mut rows, &what, &samples, copied_gb_s);
        }
    }
    Ok(rows)
}

/// Reads while another thread copies without a pause.
fn beside(reader: &Reader, rig: &mut Rig, direction: CopyDirection) -> Result<(Samples, f64), Failure> {
    let stop = AtomicBool::new(false);
    rig.time(direction)?;
    thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let (start, mut jobs) = (Instant::now(), 0_u32);
            while !stop.load(Ordering::Relaxed) {
                rig.time(direction).map_err(|error| error.to_string())?;
                jobs += 1;
            }
            Ok::<_, String>(f64::from(jobs) * COPIED_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9)
        });
        let samples = reader.samples();
        stop.store(true, Ordering::Relaxed);
        let copied = copying.join().map_err(|_| "the copying thread panicked")??;
        Ok((samples?, copied))
    })
}

fn report(rows: &mut Vec<Value>, what: &Value, samples: &Samples, copied_gb_s: f64) {
    let read_us = samples.micros();
    println!("reading 2 GiB takes {} us beside {what}, which copies {copied_gb_s:.1} GB/s", text(&read_us));
    rows.push(json!({
        "what": what,
        "read_us": read_us,
        "read_p99_us": round(samples.at_share(0.99).as_secs_f64() * 1e6),
        "copied_gb_s": round(copied_gb_s),
    }));
}
