#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mk_cli::fuzz::trace(bytes));
