#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orbitkv_fuzz::segments(bytes));
