//! Calls of the hostile clients, with headers, credentials and arguments.

use crate::known::{Known, mutate, opaque, put};
use crate::source::Source;
use crate::templates::{Fields, MOUNT, NFSACL, NLM, NSM, V4};
use weir_nfs::v4::OpCode;
use weir_nfs::{mount, nfsacl, nlm, nsm, v4};
use weir_rpc::{AuthFlavor, AuthSys, OpaqueAuth};
use weir_xdr::{Bytes, Opaque};

/// Clients, each with an address of its own.
pub(crate) const CLIENTS: usize = 3;

/// What the clients know, and the number of the last call.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) known: [Known; CLIENTS],
    xid: u32,
}

impl Calls {
    /// A call with valid arguments.
    pub(crate) fn filled(
        &mut self,
        source: &mut Source<'_>,
        of: usize,
        which: (u32, u32, u32),
        fields: Fields,
    ) -> Vec<u8> {
        let mut args = Vec::new();
        self.known[of].fill(source, fields, &mut args);
        self.call(source, which, &args, true)
    }

    /// A call of a program beside NFS.
    pub(crate) fn other(&mut self, source: &mut Source<'_>, of: usize) -> Vec<u8> {
        match source.below(8) {
            0..=4 => {
                let Some((procedure, fields)) = source.pick(NLM) else { return Vec::new() };
                self.filled(source, of, (nlm::PROGRAM, nlm::VERSION, *procedure as u32), fields)
            }
            5 => {
                let Some((procedure, fields)) = source.pick(NSM) else { return Vec::new() };
                self.filled(source, of, (nsm::PROGRAM, nsm::VERSION, *procedure as u32), fields)
            }
            which => {
                let (program, table) =
                    if which == 6 { (mount::PROGRAM, MOUNT) } else { (nfsacl::PROGRAM, NFSACL) };
                let procedure = source.below(table.len());
                self.filled(source, of, (program, 3, procedure as u32), table[procedure])
            }
        }
    }

    /// A record without its mark: header, credential and arguments, changed now and then.
    pub(crate) fn call(
        &mut self,
        source: &mut Source<'_>,
        (program, version, procedure): (u32, u32, u32),
        args: &[u8],
        may_change: bool,
    ) -> Vec<u8> {
        self.xid += 1;
        let mut record = Vec::with_capacity(args.len() + 80);
        [self.xid, 0, 2, program, version, procedure].iter().for_each(|w| put(&mut record, *w));
        let uid = if may_change && source.one_in(16) { 1000 } else { 0 };
        let sys = AuthSys { machine_name: "hostile".into(), uid, ..AuthSys::default() };
        let cred = if may_change && source.one_in(64) {
            OpaqueAuth { flavor: AuthFlavor(source.word_below(8)), body: Opaque(Bytes::new()) }
        } else {
            OpaqueAuth::from(&sys)
        };
        put(&mut record, cred.flavor.0);
        opaque(&mut record, &cred.body.0);
        [0, 0].iter().for_each(|w| put(&mut record, *w));
        record.extend_from_slice(args);
        if may_change && source.one_in(6) {
            mutate(source, &mut record);
        }
        record
    }

    /// A COMPOUND of these operations, changed now and then.
    pub(crate) fn compound_of(
        &mut self,
        source: &mut Source<'_>,
        minor: u32,
        ops: &[Vec<u8>],
    ) -> Vec<u8> {
        self.compound_with(source, minor, ops, true)
    }

    /// A COMPOUND on which much depends: it is changed rarely.
    pub(crate) fn first_compound(
        &mut self,
        source: &mut Source<'_>,
        minor: u32,
        ops: &[Vec<u8>],
    ) -> Vec<u8> {
        let may_change = source.one_in(16);
        self.compound_with(source, minor, ops, may_change)
    }

    fn compound_with(
        &mut self,
        source: &mut Source<'_>,
        minor: u32,
        ops: &[Vec<u8>],
        may_change: bool,
    ) -> Vec<u8> {
        let mut args = Vec::new();
        let tag: &[u8] = if may_change && source.one_in(16) { &[b't'; 1030] } else { b"" };
        opaque(&mut args, tag);
        put(&mut args, minor);
        put(&mut args, ops.len() as u32);
        ops.iter().for_each(|op| args.extend_from_slice(op));
        let which = (v4::PROGRAM, v4::VERSION, v4::PROC_COMPOUND);
        self.call(source, which, &args, may_change)
    }

    pub(crate) fn op(&mut self, source: &mut Source<'_>, of: usize, code: OpCode) -> Vec<u8> {
        let mut op = Vec::new();
        put(&mut op, code as u32);
        let fields = V4.iter().find(|(known, _)| *known == code).map_or(&[][..], |(_, f)| f);
        self.known[of].fill(source, fields, &mut op);
        op
    }

    /// SEQUENCE with the slot's next number, or its last.
    pub(crate) fn sequence(&mut self, source: &mut Source<'_>, of: usize) -> Vec<u8> {
        if source.one_in(32) {
            return self.op(source, of, OpCode::Sequence);
        }
        let sessions = &self.known[of].sessions;
        let session = if source.one_in(8) { source.pick(sessions) } else { sessions.last() };
        let slot = source.below(16).saturating_sub(12) % 4;
        let (id, next) = session.map_or(([0; 16], 1), |session| (session.id, session.next[slot]));
        let mut op = Vec::new();
        put(&mut op, OpCode::Sequence as u32);
        op.extend_from_slice(&id);
        let number = if source.one_in(32) { next.wrapping_sub(1) } else { next };
        [number, slot as u32, 3, source.word_below(2)].iter().for_each(|w| put(&mut op, *w));
        op
    }

    /// A COMPOUND of a few operations on some file.
    pub(crate) fn compound(&mut self, source: &mut Source<'_>, of: usize, minor: u32) -> Vec<u8> {
        let mut ops = Vec::new();
        if minor > 0 && !source.one_in(32) {
            ops.push(self.sequence(source, of));
        }
        ops.push(self.op(source, of, OpCode::Putfh));
        if source.one_in(4) {
            ops.push(self.op(source, of, OpCode::Savefh));
            ops.push(self.op(source, of, OpCode::Putfh));
        }
        for _ in 0..=source.below(4) {
            let Some((code, _)) = source.pick(V4) else { break };
            let code = if code.is_in(minor) || source.one_in(16) { *code } else { OpCode::Open };
            ops.push(self.op(source, of, code));
            if matches!(code, OpCode::Open | OpCode::Lookup | OpCode::Create) {
                ops.push(self.op(source, of, OpCode::Getfh));
            }
        }
        self.compound_of(source, minor, &ops)
    }

    /// An OPEN that succeeds, as most state needs one, with what may follow it.
    pub(crate) fn open_op(&mut self, source: &mut Source<'_>, of: usize, minor: u32) -> Vec<u8> {
        let mut ops = Vec::new();
        if minor > 0 {
            ops.push(self.sequence(source, of));
        }
        ops.push((OpCode::Putrootfh as u32).to_be_bytes().to_vec());
        let known = &mut self.known[of];
        let client = known.clients.last().copied().unwrap_or(0).to_be_bytes();
        let seqid = known.next_sequence();
        let access = source.pick(&[3, 1, 2, 0x103, 0x203, 0x30_0203]).copied().unwrap_or(3);
        let access = if minor == 0 { access & 3 } else { access };
        let mut op = Vec::new();
        [OpCode::Open as u32, seqid, access, 0].iter().for_each(|w| put(&mut op, *w));
        op.extend_from_slice(&client);
        opaque(&mut op, &[b'o', source.byte() % 16]);
        // UNCHECKED4 with a mode; CLAIM_NULL.
        [1, 0, 2, 0, 2, 4, 0o666, 0].iter().for_each(|w| put(&mut op, *w));
        opaque(&mut op, &[b'a' + source.byte() % 3]);
        ops.push(op);
        ops.push((OpCode::Getfh as u32).to_be_bytes().to_vec());
        if source.one_in(2) && minor > 0 {
            // A lock under the current stateid.
            let mut op = Vec::new();
            let start = u32::from(source.byte()) * 8;
            [OpCode::Lock as u32, 2, 0, 0, start, 0, 4, 1, 0, 1, 0, 0, 0, 0]
                .iter()
                .for_each(|w| put(&mut op, *w));
            op.extend_from_slice(&client);
            opaque(&mut op, &[b'l', source.byte() % 4]);
            ops.push(op);
        }
        let further = source.below(3);
        for _ in 0..further {
            let Some((code, _)) = source.pick(V4) else { break };
            if code.is_in(minor) {
                ops.push(self.op(source, of, *code));
            }
        }
        self.compound_of(source, minor, &ops)
    }
}
