//! The driver as a library: found or not, whole or not, old or new.
#![allow(clippy::unwrap_used)]

mod device;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{BatchForm, BatchRefusal, CopyMethod, CudaCopy, CudaCopyConfig, CudaDriver, CudaError};
use orbitkv_fake_cuda::Fake;

use device::{DEVICE_BYTE, DeviceWorld, POOL_BYTE, SMALL, without_kernel};

const BATCH_12: &std::ffi::CStr = c"cuMemcpyBatchAsync";
const BATCH_13: &std::ffi::CStr = c"cuMemcpyBatchAsync_v2";

#[test]
fn a_host_without_a_driver_gets_an_error_that_says_so() {
    let error = CudaDriver::load_from(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
    assert!(matches!(error, CudaError::NoDriver { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
    // A file that is there and is no library.
    let program = Path::new("/proc/self/cmdline");
    assert!(matches!(CudaDriver::load_from(program), Err(CudaError::NoDriver { .. })));
}

#[test]
fn what_a_driver_lacks_is_named() {
    let fake = Fake::load().unwrap();
    let load = |hidden| CudaDriver::load_without(fake.path(), &[hidden]);
    let missing = |error: CudaError| match error {
        CudaError::MissingSymbol { symbol, version } => (symbol, version),
        other => unreachable!("{other}"),
    };
    assert_eq!(missing(load(c"cuDriverGetVersion").unwrap_err()), ("cuDriverGetVersion", 0));
    for hidden in [c"cuMemHostRegister_v2", c"cuEventCreate", c"cuStreamCreateWithPriority"] {
        let (symbol, version) = missing(load(hidden).unwrap_err());
        assert_eq!(symbol, hidden.to_str().unwrap());
        assert_eq!(version, 13_000);
    }
}

/// By the name that real drivers have, through the search path of the dynamic loader, in a process of its own.
#[test]
fn the_driver_is_found_by_its_name() {
    const CHILD: &str = "ORBITKV_TEST_LOADS_BY_NAME";
    if std::env::var_os(CHILD).is_some() {
        let driver = CudaDriver::load().unwrap();
        assert_eq!((driver.version(), driver.device_count()), (13_000, Ok(256)));
        return;
    }
    let fake = Fake::load().unwrap();
    let folder = std::env::temp_dir().join(format!("orbitkv-fake-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(fake.path(), folder.join("libcuda.so.1")).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_driver_is_found_by_its_name"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let fake = Fake::load().unwrap();
    let driver = CudaDriver::load_from(fake.path()).unwrap();
    let error = CudaCopy::new(&driver, CudaCopyConfig::new(9999)).err().unwrap();
    assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let fake = Fake::load().unwrap();
    let driver = CudaDriver::load_from(fake.path()).unwrap();
    let good = || CudaCopyConfig::new(fake.device().ordinal);
    for config in [
        CudaCopyConfig { max_jobs: 0, ..good() },
        CudaCopyConfig { batch_max_descriptors: 0, ..good() },
        CudaCopyConfig { batch_max_descriptors: 513, ..good() },
        CudaCopyConfig { kernel_ctas: 0, ..good() },
        CudaCopyConfig { kernel_ctas: 65, ..good() },
        CudaCopyConfig { staging_slot_bytes: 4097, ..good() },
        CudaCopyConfig { register_chunk_bytes: 512 << 20, ..good() },
    ] {
        assert!(matches!(CudaCopy::new(&driver, config), Err(CudaError::Config { .. })));
    }
}

/// Both directions with the batch call in the form the driver has.
#[test]
fn both_forms_of_the_batch_call_work() {
    let fake = Fake::load().unwrap();
    for (hidden, form) in [(BATCH_12, BatchForm::Cuda13), (BATCH_13, BatchForm::Cuda12)] {
        let driver = CudaDriver::load_without(fake.path(), &[hidden]).unwrap();
        assert_eq!(driver.batch_form(), Some(form));
        let mut world = DeviceWorld::on(&driver, fake.device(), SMALL, |config, _| without_kernel(config));
        assert_eq!(world.handle.batch_refusal(), None);
        world.register();
        let before = world.fake.stats();
        world.submit(world.job(1, Save, &[0, 2, 4, 6]));
        world.submit(world.job(2, Restore, &[1, 3, 5, 7]));
        world.drain(2);
        let after = world.fake.stats();
        assert_eq!(after.batch_calls - before.batch_calls, 6, "one a layer and direction");
        assert_eq!(after.plain_copies, before.plain_copies);
        assert!(world.pages_are(&[0, 2, 4, 6], DEVICE_BYTE) && world.pages_are(&[1, 3, 5, 7], POOL_BYTE));
        assert!(world.device_is(&[1, 3, 5, 7], POOL_BYTE) && world.device_is(&[0, 2, 4, 6], DEVICE_BYTE));
    }
}

#[test]
fn a_driver_without_batches_copies_rows_and_says_so_once() {
    let fake = Fake::load().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let driver = CudaDriver::load_without(fake.path(), &[BATCH_12, BATCH_13]).unwrap();
    let heard = said.clone();
    let mut world = DeviceWorld::on(&driver, fake.device(), SMALL, |config, _| CudaCopyConfig {
        batch_notice: Some(Arc::new(move |refusal| heard.lock().unwrap().push(refusal.clone()))),
        ..without_kernel(config)
    });
    world.register();
    world.submit(world.job(1, Save, &[0, 1, 2, 3]));
    world.submit(world.job(2, Save, &[4, 5, 6, 7]));
    world.drain(2);
    assert!(world.pages_are(&[0, 1, 2, 3, 4, 5, 6, 7], DEVICE_BYTE));
    let stats = world.fake.stats();
    assert_eq!((stats.row_copies, stats.batch_calls, stats.plain_copies), (6, 0, 0));
    assert_eq!(*said.lock().unwrap(), [BatchRefusal::Missing]);
    assert_eq!(world.handle.batch_refusal(), Some(BatchRefusal::Missing));
}

#[test]
fn batches_that_fail_the_self_test_are_not_used() {
    let mut world = DeviceWorld::with(SMALL, |config, fake| {
        fake.fail("cuMemcpyBatchAsync", 3, 1);
        without_kernel(config)
    });
    assert!(matches!(world.handle.batch_refusal(), Some(BatchRefusal::Failed(_))));
    world.register();
    let before = world.fake.stats();
    world.submit(world.job(1, Save, &[0, 2, 3, 5, 7]));
    world.drain(1);
    let after = world.fake.stats();
    assert_eq!(after.batch_calls, before.batch_calls);
    assert!(world.pages_are(&[0, 2, 3, 5, 7], DEVICE_BYTE));
}

#[test]
fn batches_that_deliver_wrong_bytes_are_not_used() {
    let mut world = DeviceWorld::with(SMALL, |config, fake| {
        fake.exchange_in_batches();
        without_kernel(config)
    });
    // There and back, two copies each: those in the middle are wrong twice, in another place.
    let refusal = world.handle.batch_refusal();
    assert!(matches!(refusal, Some(BatchRefusal::WrongBytes { wrong: 1..=4, of: 512 })), "{refusal:?}");
    world.register();
    let before = world.fake.stats().batch_calls;
    world.submit(world.job(1, Save, &[0, 2, 3, 5, 7]));
    world.drain(1);
    assert_eq!(world.fake.stats().batch_calls, before);
    assert!(world.pages_are(&[0, 2, 3, 5, 7], DEVICE_BYTE));
}

#[test]
fn batches_that_fail_later_are_done_again_one_by_one() {
    let said = Arc::new(Mutex::new(0));
    let heard = said.clone();
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig {
        batch_notice: Some(Arc::new(move |_| *heard.lock().unwrap() += 1)),
        ..without_kernel(config)
    });
    world.register();
    assert_eq!(world.handle.batch_refusal(), None);
    world.fake.fail("cuMemcpyBatchAsync", 2, 801);
    world.submit(world.job(1, Save, &[0, 2, 4, 6]));
    world.submit(world.job(2, Restore, &[1, 3, 5, 7]));
    let done = world.drain(2);
    assert!(done.iter().all(|done| done.state == orbitkv_copy::CopyState::Done), "{done:?}");
    assert!(world.pages_are(&[0, 2, 4, 6], DEVICE_BYTE) && world.device_is(&[1, 3, 5, 7], POOL_BYTE));
    assert!(matches!(world.handle.batch_refusal(), Some(BatchRefusal::Failed(_))));
    assert_eq!(*said.lock().unwrap(), 1);
}

#[test]
fn the_method_asked_for_is_used_and_large_fragments_go_alone() {
    let kernel_below = [(4097, (3, 0, 0, 0)), (4096, (0, 3, 0, 0)), (0, (0, 3, 0, 0))];
    let auto = kernel_below.map(|(bytes, calls)| (CopyMethod::Auto, bytes, calls));
    let asked = [
        (CopyMethod::Plain, 4097, (0, 0, 0, 12)),
        (CopyMethod::Rows, 4097, (0, 0, 3, 0)),
        (CopyMethod::Batch, 4097, (0, 3, 0, 0)),
        (CopyMethod::Kernel, 0, (3, 0, 0, 0)),
    ];
    for (method, kernel_below_bytes, calls) in auto.into_iter().chain(asked) {
        let mut world =
            DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { method, kernel_below_bytes, ..config });
        world.register();
        let before = world.fake.stats();
        world.submit(world.job(1, Save, &[0, 1, 2, 3]));
        world.drain(1);
        let after = world.fake.stats();
        let made = (
            after.launches - before.launches,
            after.batch_calls - before.batch_calls,
            after.row_copies - before.row_copies,
            after.plain_copies - before.plain_copies,
        );
        assert_eq!(made, calls, "{method}, kernel below {kernel_below_bytes}");
    }
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { plain_min_bytes: 4096, ..config });
    world.register();
    let before = world.fake.stats();
    world.submit(world.job(1, Save, &[0, 1, 2, 3]));
    world.drain(1);
    assert_eq!(world.fake.stats().plain_copies - before.plain_copies, 12);
}
