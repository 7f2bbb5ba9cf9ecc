//! What a hostile client knows of the server, and the calls that it makes of that.

use crate::source::Source;
use crate::templates::{Field, Fields};
use std::collections::BTreeMap;

/// Most values of each kind; a new one replaces one of them.
const KEPT: usize = 16;
/// Longest data of a WRITE, in bytes.
const DATA_BYTES: u32 = 20_000;

const NAMES: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    ".",
    "..",
    "",
    "a/b",
    "/",
    "user.x",
    "system.posix_acl_access",
    "\0",
    "1",
    "EVERYONE@",
    "127.0.0.1.0.111",
    "tcp",
];
const OWNERS: &[&str] = &["0", "1000", "7", "a@b", "", "EVERYONE@", "4294967296"];
const LABELS: &[&str] = &["one", "two", "three", "", "127.0.0.1", "tcp"];
const OFFSETS: &[u64] = &[
    0,
    1,
    4096,
    100,
    4095,
    8192,
    65_536,
    1 << 20,
    1 << 32,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
const COUNTS: &[u32] =
    &[4096, 0, 1, 100, 512, 8192, 65_536, 1 << 20, (1 << 20) + 1, i32::MAX as u32, u32::MAX];
const EXTREMES: &[u32] =
    &[0, 1, 2, 3, 4, 8, 64, 255, 1024, 65_535, 1 << 20, i32::MAX as u32, 1 << 31, u32::MAX];

/// A session, and the next sequence number of each of its first slots.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: [u8; 16],
    pub(crate) next: [u32; 4],
}

/// Values that the server has sent.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) handles: Vec<Vec<u8>>,
    pub(crate) stateids: Vec<[u8; 16]>,
    pub(crate) clients: Vec<u64>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) verifiers: Vec<[u8; 8]>,
    pub(crate) cookies: Vec<u64>,
    /// How often each operation of NFSv4 succeeded and failed.
    pub(crate) results: BTreeMap<&'static str, (u64, u64)>,
    sequence: u32,
}

impl Known {
    /// Adds a value to the end of a list.
    fn learn<T: PartialEq>(list: &mut Vec<T>, value: T) {
        // The first one stays: it is the root's.
        if list.first() == Some(&value) {
            return;
        }
        list.retain(|known| *known != value);
        if list.len() == KEPT {
            list.remove(1);
        }
        list.push(value);
    }

    pub(crate) fn note(&mut self, operation: &'static str, succeeded: bool) {
        let (ok, failed) = self.results.entry(operation).or_default();
        *(if succeeded { ok } else { failed }) += 1;
    }

    pub(crate) fn handle(&mut self, handle: &[u8]) {
        Self::learn(&mut self.handles, handle.to_vec());
    }

    pub(crate) fn stateid(&mut self, stateid: weir_nfs::v4::types::StateId) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&stateid.seqid.to_be_bytes());
        bytes[4..].copy_from_slice(&stateid.other);
        // A later state of the same replaces it.
        self.stateids.retain(|known| known[4..] != bytes[4..] || stateid.seqid.is_multiple_of(4));
        Self::learn(&mut self.stateids, bytes);
    }

    pub(crate) fn client(&mut self, id: u64) {
        self.clients.retain(|known| *known != id);
        Self::learn(&mut self.clients, id);
    }

    pub(crate) fn verifier(&mut self, verifier: [u8; 8]) {
        Self::learn(&mut self.verifiers, verifier);
    }

    pub(crate) fn cookie(&mut self, cookie: u64) {
        Self::learn(&mut self.cookies, cookie);
    }

    pub(crate) fn session(&mut self, id: [u8; 16]) {
        if self.sessions.len() == KEPT {
            self.sessions.remove(0);
        }
        self.sessions.push(Session { id, next: [1; 4] });
    }

    /// A sequence number of an owner of minor version 0 or of CREATE_SESSION.
    pub(crate) fn set_sequence(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    /// The next of them.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Appends a call's arguments.
    pub(crate) fn fill(&mut self, source: &mut Source<'_>, fields: Fields, to: &mut Vec<u8>) {
        for field in fields {
            self.field(source, *field, to);
        }
    }

    fn field(&mut self, source: &mut Source<'_>, field: Field, to: &mut Vec<u8>) {
        match field {
            Field::Is(word) => put(to, word),
            Field::Below(limit) => put(to, source.word_below(limit)),
            Field::Flags(words) => put(to, source.pick(words).copied().unwrap_or(0)),
            Field::Offset => put64(to, source.pick(OFFSETS).copied().unwrap_or(0)),
            Field::Count => put(to, source.pick(COUNTS).copied().unwrap_or(0)),
            Field::StateId => to.extend_from_slice(&self.any_stateid(source)),
            Field::Handle => {
                let handle = match source.below(8) {
                    0 | 7 => self.handles.first(),
                    // Most likely the file of the last stateid.
                    1..=4 => self.handles.last(),
                    _ => source.pick(&self.handles),
                };
                opaque(to, handle.map_or(&[][..], |handle| &handle[..]));
            }
            Field::Name => opaque(to, any(source, NAMES).as_bytes()),
            Field::Label => opaque(to, any(source, LABELS).as_bytes()),
            Field::Owner => {
                self.field(source, Field::ClientId, to);
                self.field(source, Field::Label, to);
            }
            Field::ClientId => {
                let id = match source.below(16) {
                    0 => source.pick(&self.clients),
                    _ => self.clients.last(),
                };
                put64(to, id.copied().unwrap_or(0));
            }
            Field::Session => match source.below(8) {
                0 => to.extend_from_slice(source.pick(&self.sessions).map_or(&[0; 16], |s| &s.id)),
                _ => to.extend_from_slice(self.sessions.last().map_or(&[0; 16], |s| &s.id)),
            },
            Field::Verifier => match source.below(4) {
                0 => to.extend_from_slice(&[0; 8]),
                1 => to.extend_from_slice(&[1; 8]),
                2 => to.extend_from_slice(source.pick(&self.verifiers).unwrap_or(&[2; 8])),
                _ => to.extend_from_slice(self.verifiers.last().unwrap_or(&[3; 8])),
            },
            Field::Sequence => {
                match source.below(8) {
                    0 => {}
                    1 => self.sequence = source.word_below(4),
                    _ => self.sequence = self.sequence.wrapping_add(1),
                }
                put(to, self.sequence);
            }
            Field::Cookie => match source.below(3) {
                0 => put64(to, 0),
                1 => put64(to, source.pick(&self.cookies).copied().unwrap_or(0)),
                _ => put64(to, source.pick(OFFSETS).copied().unwrap_or(0)),
            },
            Field::Bitmap => bitmap(source, to),
            Field::Attrs => attrs(source, to),
            Field::Attrs3 => attrs3(source, to),
            Field::Data => {
                let len = source.pick(COUNTS).copied().unwrap_or(0).min(DATA_BYTES);
                opaque(to, &vec![source.byte(); len as usize]);
            }
            Field::List(most, fields) => {
                let count = source.word_below(most + 1);
                put(to, count);
                (0..count).for_each(|_| self.fill(source, fields, to));
            }
            Field::Union(arms) => {
                let Some((word, fields)) = source.pick(arms) else { return };
                put(to, *word);
                self.fill(source, fields, to);
            }
        }
    }

    fn any_stateid(&self, source: &mut Source<'_>) -> [u8; 16] {
        let mut current = [0; 16];
        current[3] = 1;
        match source.below(16) {
            0 => [0; 16],
            1 => [0xff; 16],
            2 | 10 | 11 => current,
            3 => {
                // Of no particular state of the same.
                let mut of = source.pick(&self.stateids).copied().unwrap_or_default();
                of[..4].fill(0);
                of
            }
            4..=9 => self.stateids.last().copied().unwrap_or_default(),
            _ => source.pick(&self.stateids).copied().unwrap_or_default(),
        }
    }
}

impl Source<'_> {
    /// A word below `limit`.
    pub(crate) fn word_below(&mut self, limit: u32) -> u32 {
        if limit <= 256 { self.below(limit as usize) as u32 } else { self.word() % limit }
    }
}

fn any(source: &mut Source<'_>, of: &[&'static str]) -> &'static str {
    // The first ones more often.
    let few = source.below(4) != 3;
    source.pick(if few { &of[..3] } else { of }).copied().unwrap_or("")
}

pub(crate) fn put(to: &mut Vec<u8>, word: u32) {
    to.extend_from_slice(&word.to_be_bytes());
}

fn put64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_be_bytes());
}

/// Bytes with their length before and padding after them.
pub(crate) fn opaque(to: &mut Vec<u8>, bytes: &[u8]) {
    put(to, bytes.len() as u32);
    to.extend_from_slice(bytes);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn bitmap(source: &mut Source<'_>, to: &mut Vec<u8>) {
    match source.below(4) {
        0 => put(to, 0),
        1 => [2, 0x0010_011a, 0x00b0_a23a].into_iter().for_each(|word| put(to, word)),
        2 => {
            put(to, 3);
            (0..3).for_each(|_| put(to, source.word()));
        }
        _ => [3, u32::MAX, u32::MAX, u32::MAX].into_iter().for_each(|word| put(to, word)),
    }
}

/// Values of the attributes that can be set.
fn attrs(source: &mut Source<'_>, to: &mut Vec<u8>) {
    let chosen = source.byte() & source.byte();
    let has = |bit: u32| chosen & (1 << bit) != 0;
    let (mut low, mut high, mut values) = (0, 0, Vec::new());
    if has(0) {
        low |= 1 << 4;
        put64(&mut values, source.pick(OFFSETS).copied().unwrap_or(0));
    }
    if has(1) && has(2) {
        low |= 1 << 12;
        put(&mut values, 1);
        [source.word_below(4), source.word_below(128), source.word()]
            .into_iter()
            .for_each(|word| put(&mut values, word));
        opaque(&mut values, any(source, NAMES).as_bytes());
    }
    if has(3) {
        high |= 1 << 1;
        put(&mut values, source.word_below(0o10000));
    }
    for (bit, number) in [(4, 4), (5, 5)] {
        if has(bit) {
            high |= 1 << number;
            opaque(&mut values, any(source, OWNERS).as_bytes());
        }
    }
    for (bit, number) in [(6, 16), (7, 22)] {
        if has(bit) {
            high |= 1 << number;
            let by_client = source.word_below(2);
            put(&mut values, by_client);
            if by_client == 1 {
                put64(&mut values, source.pick(OFFSETS).copied().unwrap_or(0));
                put(&mut values, source.word());
            }
        }
    }
    [2, low, high].into_iter().for_each(|word| put(to, word));
    opaque(to, &values);
}

fn attrs3(source: &mut Source<'_>, to: &mut Vec<u8>) {
    for limit in [0o10000, 3, 3] {
        let set = source.word_below(2);
        put(to, set);
        if set == 1 {
            put(to, source.word_below(limit));
        }
    }
    let size = source.word_below(2);
    put(to, size);
    if size == 1 {
        put64(to, source.pick(OFFSETS).copied().unwrap_or(0));
    }
    for _ in 0..2 {
        let how = source.word_below(3);
        put(to, how);
        if how == 2 {
            put(to, source.word());
            put(to, source.word());
        }
    }
}

/// Changes a record: some of its words, or its length.
pub(crate) fn mutate(source: &mut Source<'_>, record: &mut Vec<u8>) {
    for _ in 0..=source.below(3) {
        let words = record.len() / 4;
        if words == 0 {
            return;
        }
        let at = 4 * (usize::from(source.byte()) << 8 | usize::from(source.byte())) % (4 * words);
        let at = at & !3;
        match source.below(8) {
            0 | 1 => {
                let word = source.pick(EXTREMES).copied().unwrap_or(0);
                record[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            2 => {
                let word = source.word();
                record[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            3 => record[at + source.below(4)] ^= 1 << source.below(8),
            4 => drop(record.drain(at..at + 4)),
            5 => {
                let word: Vec<u8> = record[at..at + 4].to_vec();
                drop(record.splice(at..at, word));
            }
            6 => record.truncate(at + source.below(4)),
            _ => record.extend_from_slice(source.bytes(8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::{MOUNT, NFSACL, NLM, NSM, V3, V4};
    use weir_nfs::v4::{Op, OpCode};
    use weir_stores::random::Random;
    use weir_xdr::{Bytes, Decode, Decoder};

    fn random_bytes(seed: u64) -> Vec<u8> {
        Random::new(seed).bytes(200).iter().map(|byte| byte.rotate_left(3)).collect()
    }

    fn filled(known: &mut Known, seed: u64, fields: Fields) -> Bytes {
        let bytes = random_bytes(seed);
        let mut to = Vec::new();
        known.fill(&mut Source::new(&bytes), fields, &mut to);
        to.into()
    }

    fn decodes<T: Decode>(bytes: &Bytes) -> bool {
        let mut d = Decoder::new(bytes.clone());
        d.get::<T>().is_ok() && d.finish().is_ok()
    }

    #[test]
    fn every_operation_has_arguments_that_decode() {
        let mut known = Known::default();
        for code in OpCode::ALL {
            let template = V4.iter().find(|(of, _)| of == code);
            let refused = Op::decode_next(&mut Decoder::new(weir_xdr::sample::wire(code)));
            let Some((_, fields)) = template else {
                assert_eq!(refused, Ok(Op::Refused(*code)), "{code:?} has no template");
                continue;
            };
            for seed in 0..200 {
                let args = filled(&mut known, seed, fields);
                let whole = [&(*code as u32).to_be_bytes()[..], &args].concat();
                let mut d = Decoder::new(Bytes::from(whole));
                let op = Op::decode_next(&mut d);
                assert!(op.is_ok_and(|op| op.code() == *code), "{code:?} of seed {seed}");
                assert_eq!(d.finish(), Ok(()), "{code:?} of seed {seed}");
            }
        }
    }

    macro_rules! v3_decodes {
        ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $kind:ident, $max:literal;)*) => {
            fn v3_decodes(procedure: weir_nfs::v3::Procedure, args: &Bytes) -> bool {
                match procedure {
                    $(weir_nfs::v3::Procedure::$name => decodes::<weir_nfs::v3::op::$op::Args>(args),)*
                }
            }
        };
    }
    weir_nfs::v3_procedures!(v3_decodes);

    macro_rules! nlm_decodes {
        ($($(#[$meta:meta])* $name:ident = $number:literal, $label:ident, $args:ty, $res:ty;)*) => {
            fn nlm_decodes(procedure: weir_nfs::nlm::Procedure, args: &Bytes) -> bool {
                use weir_nfs::nlm::{self, Call};
                match procedure {
                    $(nlm::Procedure::$name => {
                        decodes::<<nlm::call::$name as Call>::Args>(args)
                    })*
                }
            }
        };
    }
    weir_nfs::nlm_procedures!(nlm_decodes);

    #[test]
    fn every_procedure_has_arguments_that_decode() {
        let mut known = Known::default();
        assert_eq!(V3.len(), weir_nfs::v3::Procedure::ALL.len());
        assert_eq!(NLM.len(), weir_nfs::nlm::Procedure::ALL.len());
        assert_eq!(NSM.len(), weir_nfs::nsm::Procedure::ALL.len());
        assert_eq!(MOUNT.len(), weir_nfs::mount::Procedure::ALL.len());
        for seed in 0..200 {
            for (procedure, fields) in V3 {
                let args = filled(&mut known, seed, fields);
                assert!(v3_decodes(*procedure, &args), "{procedure:?} of seed {seed}");
            }
            for (procedure, fields) in NLM {
                let args = filled(&mut known, seed, fields);
                assert!(nlm_decodes(*procedure, &args), "{procedure:?} of seed {seed}");
            }
            assert!(decodes::<weir_nfs::nfsacl::Setacl>(&filled(&mut known, seed, NFSACL[2])));
            assert!(decodes::<weir_nfs::mount::Mnt>(&filled(&mut known, seed, MOUNT[1])));
            assert!(decodes::<weir_nfs::nsm::Mon>(&filled(&mut known, seed, NSM[2].1)));
        }
    }
}
