//! Measures the CUDA copy engine on a real device, beside one plain copy of the same bytes in the same process; then what
//! its copies cost a model's computation and others' copies.
//!
//! ```text
//! cuda_copy OUT.json [--device N] [--mib 256] [--rounds 7] [--seconds 60] [--fragments-kib 4,16]
//!           [--methods plain,batch] [--kernel-ctas N] [--library libcuda.so.1]
//! ```
//!
//! Prints a table, writes every figure to OUT.json, and fails if a byte differs after a restore and a save.
#![allow(clippy::print_stdout)]

mod bench;
mod neighbour;
mod others;
mod pins;
mod registering;
mod samples;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use orbitkv_copy::{CopyMethod, CudaCopy, CudaCopyConfig, CudaDriver, CudaError};
use serde_json::json;

/// What can stop a measurement.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The command line.
pub(crate) struct Settings {
    pub(crate) out: PathBuf,
    pub(crate) device: u32,
    pub(crate) bytes: usize,
    pub(crate) rounds: usize,
    pub(crate) deadline: Instant,
    pub(crate) fragments_kib: Vec<usize>,
    pub(crate) methods: Vec<CopyMethod>,
    pub(crate) kernel_ctas: u32,
    pub(crate) library: PathBuf,
}

impl Settings {
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

fn settings() -> Result<Settings, Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: cuda_copy OUT.json [--device N] [--mib N] [--rounds N] [--seconds N] [--fragments-kib N,N] \
                 [--methods NAME,NAME] [--kernel-ctas N] [--library PATH]";
    let out = arguments.next().filter(|out| !out.starts_with('-')).ok_or(usage)?;
    let (mut device, mut mib, mut rounds, mut seconds) = (0, 256, 7, 60);
    let (mut fragments_kib, mut methods) = (bench::FRAGMENTS_KIB.to_vec(), bench::METHODS.to_vec());
    let mut kernel_ctas = CudaCopyConfig::new(0).kernel_ctas;
    let mut library = PathBuf::from("libcuda.so.1");
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value; {usage}"))?;
        match name.as_str() {
            "--device" => device = value.parse()?,
            "--mib" => mib = value.parse()?,
            "--rounds" => rounds = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            "--fragments-kib" => {
                fragments_kib = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--methods" => methods = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--kernel-ctas" => kernel_ctas = value.parse()?,
            "--library" => library = PathBuf::from(value),
            _ => return Err(format!("{name} is unknown; {usage}").into()),
        }
    }
    // The largest fragments fill two blocks of 32 layers: 256 MiB, or a part of it with fewer layers.
    if !(16..=4096).contains(&mib) || rounds < 5 || seconds == 0 {
        return Err("use --mib 16 to 4096, --rounds 5 or more, --seconds 1 or more".into());
    }
    if !fragments_kib.iter().all(|kib| (4..=4096).contains(kib) && kib.is_power_of_two()) {
        return Err("use --fragments-kib with powers of two from 4 to 4096".into());
    }
    let deadline = Instant::now() + Duration::from_secs(seconds);
    Ok(Settings {
        out: out.into(),
        device,
        bytes: mib << 20,
        rounds,
        deadline,
        fragments_kib,
        methods,
        kernel_ctas,
        library,
    })
}

fn run() -> Result<u64, Failure> {
    let settings = settings()?;
    let driver = CudaDriver::load_from(&settings.library)?;
    println!("driver {}, batch call {:?}", driver.version(), driver.batch_form());
    let start = Instant::now();
    let engine = CudaCopy::new(&driver, CudaCopyConfig::new(settings.device))?;
    let (start_ms, method_by_size) = (start.elapsed().as_millis(), engine.handle().method_by_size());
    println!("engine made in {start_ms} ms; {method_by_size}");
    drop(engine);
    let registration = pins::measure(&driver, &settings)?;
    let copies = bench::measure(&driver, &settings)?;
    let latency = bench::latency(&driver, &settings)?;
    let neighbour = neighbour::measure(&driver, &settings)?;
    let others = others::measure(&driver, &settings)?;
    let registering = registering::measure(&driver, &settings)?;
    let report = json!({
        "driver_version": driver.version(),
        "batch_form": driver.batch_form().map(|form| format!("{form:?}")),
        "bytes": settings.bytes,
        "rounds": settings.rounds,
        "kernel_ctas": settings.kernel_ctas,
        "engine_start_ms": u64::try_from(start_ms)?,
        "method_by_size": method_by_size,
        "registration": registration,
        "copies": copies.rows,
        "latency": latency,
        "neighbour": neighbour,
        "others": others,
        "beside_registration": registering,
        "differing_bytes": copies.differing_bytes,
        "cut_short": settings.is_late(),
    });
    std::fs::write(&settings.out, serde_json::to_string_pretty(&report)? + "\n")?;
    println!("{} differing bytes; written to {}", copies.differing_bytes, settings.out.display());
    Ok(copies.differing_bytes)
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            if let Some(CudaError::NoDriver { .. }) = error.downcast_ref() {
                println!("nothing was measured:");
            }
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
