//! Every decoder of the crate by name, so that a fuzzer and the property tests reach them all.
//!
//! The list is generated from the tables: an operation or procedure cannot be added without its
//! decoder being fuzzed.

use crate::{nlm, nsm, v3, v4};
use weir_xdr::{Bytes, Decode, Decoder, Encode};

/// A decoder by name: decodes a message as its type and, if that succeeds, checks that encoding and
/// decoding the value again gives the same result.
pub type Entry = (&'static str, fn(Bytes));

fn probe<T: Decode + Encode>(bytes: Bytes) {
    let mut d = Decoder::new(bytes);
    if let Ok(value) = d.get::<T>() {
        let written = write(&value);
        let again = Decoder::new(written.clone()).get::<T>();
        assert_eq!(again.map(|value| write(&value)), Ok(written), "a value changed on the wire");
    }
}

fn write<T: Encode>(value: &T) -> Bytes {
    let mut e = weir_xdr::Encoder::new();
    e.put(value);
    e.finish().to_bytes()
}

/// Decodes a COMPOUND like a server, operation by operation.
fn compound(bytes: Bytes) {
    let mut d = Decoder::new(bytes);
    if d.get::<v4::CompoundHeader>().is_ok() {
        while v4::Op::decode_next(&mut d).is_ok() {}
    }
}

/// Decodes a COMPOUND's reply like a client, result by result.
fn compound_reply(bytes: Bytes) {
    let mut d = Decoder::new(bytes);
    if d.get::<v4::CompoundResHeader>().is_ok() {
        while v4::OpRes::decode_next(&mut d).is_ok() {}
    }
}

/// Decodes a callback compound, operation by operation.
fn callback(bytes: Bytes) {
    let mut d = Decoder::new(bytes);
    if d.get::<v4::CbCompoundHeader>().is_ok() {
        while v4::CbOp::decode_next(&mut d).is_ok() {}
    }
}

/// Decodes a READ_PLUS reply in pieces, like a client that receives in place.
fn read_plus_pieces(bytes: Bytes) {
    use v4::op::read_plus::{ReplyHeader, SegmentHeader};
    let mut d = Decoder::new(bytes);
    let Ok(header) = d.get::<ReplyHeader>() else { return };
    for _ in 0..header.segments {
        match d.get::<SegmentHeader>() {
            Ok(SegmentHeader::Data { len, .. }) if d.skip(len as usize).is_ok() => {}
            Ok(SegmentHeader::Hole(_)) => {}
            _ => return,
        }
    }
}

macro_rules! v4_entries {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $minors:expr, $place:ident,
        $handles:ident, $stateid:ident, $kind:ident, $bound:ident $bytes:literal;)*) => {
        const V4: &[Entry] = &[$(
            (concat!("v4 ", stringify!($op), " arguments"), probe::<v4::op::$op::Args>),
            (concat!("v4 ", stringify!($op), " result"), probe::<v4::op::$op::Res>),
        )*];
    };
}

macro_rules! v3_entries {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $kind:ident, $max:literal;)*) => {
        const V3: &[Entry] = &[$(
            (concat!("v3 ", stringify!($op), " arguments"), probe::<v3::op::$op::Args>),
            (concat!("v3 ", stringify!($op), " result"), probe::<v3::op::$op::Res>),
        )*];
    };
}

macro_rules! nlm_entries {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $label:ident, $args:ty, $res:ty;)*) => {
        const NLM: &[Entry] = &[$(
            (
                concat!("nlm ", stringify!($label), " arguments"),
                probe::<<nlm::call::$name as nlm::Call>::Args>,
            ),
            (
                concat!("nlm ", stringify!($label), " result"),
                probe::<<nlm::call::$name as nlm::Call>::Res>,
            ),
        )*];
    };
}

crate::v4_operations!(v4_entries);
crate::v3_procedures!(v3_entries);
crate::nlm_procedures!(nlm_entries);

const WHOLE: &[Entry] = &[
    ("compound", compound),
    ("compound reply", compound_reply),
    ("callback", callback),
    ("read_plus in pieces", read_plus_pieces),
    ("mount result", probe::<crate::mount::MntRes>),
    ("getacl arguments", probe::<crate::nfsacl::Getacl>),
    ("getacl result", probe::<crate::nfsacl::GetaclRes>),
    ("setacl arguments", probe::<crate::nfsacl::Setacl>),
    ("setacl result", probe::<crate::nfsacl::SetaclRes>),
    ("nsm mon", probe::<nsm::Mon>),
    ("nsm notify", probe::<nsm::StatChange>),
    ("rpc credentials", probe::<weir_rpc::OpaqueAuth>),
    ("rpc AUTH_SYS", probe::<weir_rpc::AuthSys>),
    ("rpc reply", |bytes| drop(Decoder::new(bytes).get::<weir_rpc::ReplyHeader>())),
    ("rpc call", |bytes| drop(weir_rpc::CallHeader::decode(&mut Decoder::new(bytes)))),
];

/// All of them.
pub fn all() -> impl Iterator<Item = Entry> {
    WHOLE.iter().chain(V4).chain(V3).chain(NLM).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words that lead deep into decoders: counts, booleans, discriminants, operation numbers.
    fn word() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 0u32..4, 2 => 3u32..76, 1 => any::<u32>(), 1 => Just(u32::MAX), 1 => 4u32..64]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let bytes = Bytes::from(bytes);
            all().for_each(|(_, decode)| decode(bytes.clone()));
        }

        #[test]
        fn likely_words_survive_the_round_trip(words in prop::collection::vec(word(), 0..80)) {
            let bytes: Bytes = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            all().for_each(|(_, decode)| decode(bytes.clone()));
        }
    }
}
