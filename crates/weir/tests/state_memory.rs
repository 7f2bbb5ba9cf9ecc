//! Growth of a running server's memory when clients of version 4.1 have many sessions, open files
//! (with all state that the server keeps for them), and locks.

mod common;

use common::{Server, scratch};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use weir_nfs::v4::attr::Attrs;
use weir_nfs::v4::op::{create_session, exchange_id, lock, open, reclaim_complete, sequence};
use weir_nfs::v4::types::{
    CallbackSec, ClientOwner, FileHandle, LockType, SessionId, StateId, StateOwner,
};
use weir_nfs::v4::{CompoundHeader, CompoundResHeader, Op, OpRes, PROC_COMPOUND, PROGRAM, VERSION};
use weir_rpc::{AuthSys, CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record};
use weir_xdr::{Bytes, Decoder, List};

const SESSIONS: usize = 1000;
const FILES: usize = 10_000;
/// Of each file.
const LOCKS: u64 = 10;
const MIB: u64 = 1 << 20;

/// One connection, used by many clients.
struct Connection {
    stream: TcpStream,
    xid: u32,
}

/// A client's session, and the number of its last call.
struct Session {
    id: SessionId,
    sequence: u32,
}

impl Connection {
    /// A compound whose operations all succeed.
    fn compound(&mut self, ops: &[Op]) -> Vec<OpRes> {
        self.xid += 1;
        let mut e = start_record();
        e.put(&CallHeader {
            xid: self.xid,
            program: PROGRAM,
            version: VERSION,
            procedure: PROC_COMPOUND,
            cred: OpaqueAuth::from(&AuthSys::default()),
            verf: OpaqueAuth::NONE,
        });
        let operations = ops.len() as u32;
        e.put(&CompoundHeader { tag: "".into(), minor_version: 1, operations });
        ops.iter().for_each(|op| e.put(op));
        self.stream.write_all(&finish_record(e).to_bytes()).unwrap();
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        let mut d = Decoder::new(Bytes::from(reply));
        let _: ReplyHeader = d.get().unwrap();
        let header: CompoundResHeader = d.get().unwrap();
        let results: Vec<_> =
            (0..header.results).map(|_| OpRes::decode_next(&mut d).unwrap()).collect();
        assert_eq!(header.status, Ok(()), "{:?}", results.last());
        results
    }

    fn in_session(
        &mut self,
        session: &mut Session,
        ops: impl IntoIterator<Item = Op>,
    ) -> Vec<OpRes> {
        session.sequence += 1;
        let args = sequence::Args {
            session: session.id,
            sequence_id: session.sequence,
            slot: 0,
            highest_slot: 63,
            cache_this: true,
        };
        let ops: Vec<Op> = std::iter::once(Op::Sequence(args)).chain(ops).collect();
        self.compound(&ops)
    }

    /// A client with a session of 64 slots, like Linux's.
    fn client(&mut self, number: usize) -> Session {
        let owner = format!("Linux NFSv4.1 host{number}").as_str().into();
        let exchange = exchange_id::Args {
            client: ClientOwner { verifier: *b"one run.", owner },
            flags: exchange_id::Flags::empty(),
            state_protect: exchange_id::StateProtect::None,
            impl_id: List::default(),
        };
        let results = self.compound(&[Op::ExchangeId(exchange)]);
        let [OpRes::ExchangeId(Ok(client))] = &results[..] else { panic!("{results:?}") };
        let channel = create_session::ChannelAttrs {
            max_request_size: 1 << 20,
            max_response_size: 1 << 20,
            max_response_size_cached: 4096,
            max_operations: 64,
            max_requests: 64,
            ..create_session::ChannelAttrs::default()
        };
        let create = create_session::Args {
            client_id: client.client_id,
            sequence_id: client.sequence_id,
            flags: create_session::Flags::empty(),
            fore: channel.clone(),
            back: channel,
            cb_program: 0x4000_0000,
            sec_parms: vec![CallbackSec::None].into(),
        };
        let results = self.compound(&[Op::CreateSession(create)]);
        let [OpRes::CreateSession(Ok(created))] = &results[..] else { panic!("{results:?}") };
        let mut session = Session { id: created.session, sequence: 0 };
        let done = Op::ReclaimComplete(reclaim_complete::Args { one_fs: false });
        self.in_session(&mut session, [done]);
        session
    }

    fn open(&mut self, session: &mut Session, number: usize) -> (FileHandle, StateId) {
        let attrs = Attrs { mode: Some(0o644), ..Attrs::default() };
        let open = Op::Open(open::Args {
            seqid: 0,
            share_access: open::ShareAccess::BOTH,
            share_deny: open::ShareDeny::empty(),
            owner: StateOwner {
                client_id: 0,
                owner: format!("open id: {number:24}").as_str().into(),
            },
            how: open::How::Create(open::CreateHow::Unchecked(attrs.into())),
            claim: open::Claim::Null(format!("file-{number}").as_str().into()),
        });
        let results = self.in_session(session, [Op::Putrootfh(()), open, Op::Getfh(())]);
        let [_, _, OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(handle))] = &results[..] else {
            panic!("{results:?}")
        };
        (handle.clone(), opened.stateid)
    }

    /// Ranges with gaps in between, so that none are merged.
    fn lock(&mut self, session: &mut Session, file: &FileHandle, open_stateid: StateId) {
        let lock_owner = StateOwner { client_id: 0, owner: "lock id: of one process".into() };
        let first = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
        let locks = (0..LOCKS).map(|number| {
            let locker = match number {
                0 => lock::Locker::New(first.clone()),
                _ => lock::Locker::Existing(lock::ExistingLocker {
                    lock_stateid: StateId::CURRENT,
                    lock_seqid: 0,
                }),
            };
            let (kind, offset) = (LockType::Write, number * 100);
            Op::Lock(lock::Args { kind, reclaim: false, offset, length: 10, locker })
        });
        let ops: Vec<Op> = std::iter::once(Op::Putfh(file.clone())).chain(locks).collect();
        self.in_session(session, ops);
    }
}

/// Resident memory in bytes.
fn memory(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn ten_thousand_open_files_a_thousand_sessions_and_a_hundred_thousand_locks_are_tens_of_megabytes()
{
    // Opens have three eighths of the server's file descriptors. An address may have half of them, and
    // each client leaves as much of that free as it has.
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) / 16 * 3;
    let files = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(SESSIONS).min(FILES);
    if files < SESSIONS {
        return weir_skip::skip(format!("a process may not open {SESSIONS} files here"));
    }
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none", "--budget", "32M"]);
    let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut connection = Connection { stream, xid: 0 };

    let mut before = memory(&server);
    let mut grown = |what: &str, count: usize| {
        let now = memory(&server);
        let bytes = now.saturating_sub(before);
        println!("{count} {what}: {} KiB, {} bytes each", bytes >> 10, bytes / count as u64);
        before = now;
        bytes
    };
    let mut sessions: Vec<Session> = (0..SESSIONS).map(|n| connection.client(n)).collect();
    let of_sessions = grown("sessions, a client each", SESSIONS);
    let opened: Vec<_> =
        (0..files).map(|n| connection.open(&mut sessions[n % SESSIONS], n)).collect();
    let of_files = grown("open files", files);
    for (n, (file, stateid)) in opened.iter().enumerate() {
        connection.lock(&mut sessions[n % SESSIONS], file, *stateid);
    }
    let of_locks = grown("locked ranges", files * LOCKS as usize);
    assert!(of_sessions < 12 * MIB && of_files < 48 * MIB && of_locks < 24 * MIB);
}
