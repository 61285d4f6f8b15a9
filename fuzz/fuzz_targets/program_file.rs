#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mk_core::fuzz::program_file(bytes));
