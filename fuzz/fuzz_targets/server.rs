#![no_main]
//! Hostile clients of a live server: sequences of calls, most of them valid; see docs/SECURITY.md.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(why) = weir_hostile::server::run(data) {
        panic!("{why}");
    }
});
