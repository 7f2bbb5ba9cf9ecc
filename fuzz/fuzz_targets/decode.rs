#![no_main]
//! Every NFS, MOUNT and RPC decoder: the first byte picks one, the rest is its message.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((pick, message)) = data.split_first() else { return };
    let decoders: Vec<_> = weir_nfs::decoders::all().collect();
    let (_, decode) = decoders[usize::from(*pick) % decoders.len()];
    decode(bytes::Bytes::copy_from_slice(message));
});
