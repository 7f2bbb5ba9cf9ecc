//! Malicious or broken peers: the server's memory stays small, it answers with an error or closes
//! the connection, and continues to serve others.

mod common;

use common::{Server, run, scratch, sparse, within};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const NFS: u32 = 100_003;
const PATIENCE: Duration = Duration::from_secs(120);

struct Setup {
    _dir: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        let dir = scratch();
        let export = dir.path().join("export");
        fs::create_dir(&export).unwrap();
        fs::write(export.join("notes"), "all is well").unwrap();
        sparse(&export.join("data"), 8 << 20, [(0, 8 << 20)]);
        let server = Server::start(&export, &["--squash", "none", "--budget", "32M"]);
        Self { _dir: dir, server }
    }

    fn connect(&self) -> TcpStream {
        self.connect_from(Ipv4Addr::LOCALHOST)
    }

    /// A connection from an address of this machine.
    fn connect_from(&self, address: Ipv4Addr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.server.port));
        socket.connect(&server.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Other clients are served: files can be read and written, with every version.
    fn serves_others(&self) {
        for vers in ["4.2", "3"] {
            let options = format!("vers={vers}&soft&timeo=1200");
            let url = |path: &str| self.server.url(path, &options);
            assert_eq!(run(["cat", &url("notes")]), "all is well");
            run(["cp", &url("data"), &url("copy")]);
        }
    }

    /// Resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.child.id()));
        let status = status.unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }
}

/// A call's header before its arguments, with AUTH_NONE.
fn call(xid: u32, program: u32, version: u32, procedure: u32) -> Vec<u8> {
    let words = [xid, 0, 2, program, version, procedure, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record of one fragment.
fn record(payload: &[u8]) -> Vec<u8> {
    let mark = 0x8000_0000 | payload.len() as u32;
    [&mark.to_be_bytes(), payload].concat()
}

/// The next record as words, or `None` if the connection is closed.
fn reply(stream: &mut TcpStream) -> Option<Vec<u32>> {
    let mut mark = [0; 4];
    match stream.read_exact(&mut mark) {
        Ok(()) => {}
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            return None;
        }
        Err(error) => panic!("neither a reply nor an end: {error}"),
    }
    let mut payload = vec![0; (u32::from_be_bytes(mark) & 0x7FFF_FFFF) as usize];
    stream.read_exact(&mut payload).unwrap();
    Some(payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect())
}

/// `accept_stat` of an accepted reply with an empty verifier.
fn accept_status(reply: &[u32]) -> u32 {
    assert_eq!(reply[1..5], [1, 0, 0, 0], "{reply:?}");
    reply[5]
}

/// Pseudo-random bytes, the same each time.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

#[test]
fn garbage() {
    let setup = Setup::new();
    for seed in 0..200 {
        let mut stream = setup.connect();
        // Either it is closed, possibly while we send, or it waits for more.
        let _ = stream.write_all(&noise(seed, 4096));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // The server ends the connection, with or without a reply.
        match stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "seed {seed}: {error}")
            }
        }
    }
    setup.serves_others();
}

#[test]
fn garbage_in_well_formed_records() {
    let setup = Setup::new();
    let mut stream = setup.connect();
    for seed in 0..2000_u32 {
        let version = 3 + seed % 2;
        let procedure = if version == 4 { 1 } else { seed % 22 };
        let mut payload = call(seed, NFS, version, procedure);
        payload.extend(noise(seed.into(), 4 * (seed as usize % 200)));
        stream.write_all(&record(&payload)).unwrap();
        // The answer is to this call, with any content.
        match reply(&mut stream) {
            Some(words) => assert_eq!(words[..2], [seed, 1]),
            None => stream = setup.connect(),
        }
    }
    setup.serves_others();
}

#[test]
fn unknown_programs_versions_and_procedures() {
    let setup = Setup::new();
    let mut stream = setup.connect();
    let mut ask = |payload: &[u8]| {
        stream.write_all(&record(payload)).unwrap();
        reply(&mut stream).unwrap()
    };
    assert_eq!(accept_status(&ask(&call(1, 99, 1, 0))), 1, "PROG_UNAVAIL");
    let mismatch = ask(&call(2, NFS, 9, 0));
    assert_eq!(mismatch[5..8], [2, 3, 4], "PROG_MISMATCH, 3 to 4");
    assert_eq!(accept_status(&ask(&call(3, NFS, 4, 77))), 3, "PROC_UNAVAIL");
    assert_eq!(accept_status(&ask(&call(4, NFS, 4, 0))), 0, "NULL");
    let mut other_rpc = call(5, NFS, 4, 0);
    other_rpc[11] = 3;
    assert_eq!(ask(&other_rpc)[1..6], [1, 1, 0, 2, 2], "RPC_MISMATCH, 2 to 2");
}

#[test]
fn truncated_compounds() {
    let setup = Setup::new();
    let mut stream = setup.connect();
    // Empty tag, minor version 2, three operations: PUTROOTFH, LOOKUP "notes", GETFH.
    let words: [u32; 8] = [0, 2, 3, 24, 15, 5, 0x6E6F_7465, 0x7300_0000];
    let mut compound: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
    compound.extend(10_u32.to_be_bytes());
    for cut in 0..compound.len() {
        let mut payload = call(cut as u32, NFS, 4, 1);
        payload.extend(&compound[..cut]);
        stream.write_all(&record(&payload)).unwrap();
        let words = reply(&mut stream).unwrap();
        // GARBAGE_ARGS, or a compound that failed (with NFS4ERR_BADXDR, say): never OK.
        let garbage = accept_status(&words) == 4;
        assert!(garbage || words[6] != 0, "cut at {cut}: {words:?}");
    }
    setup.serves_others();
}

#[test]
fn records_that_are_too_long() {
    let setup = Setup::new();
    let before = setup.memory();
    for mark in [0xFFFF_FFFF_u32, 0x7FFF_FFFF, 0x8000_0000 | (64 << 20)] {
        let mut stream = setup.connect();
        stream.write_all(&mark.to_be_bytes()).unwrap();
        let _ = stream.write_all(&noise(1, 1 << 20));
        assert_eq!(reply(&mut stream), None, "{mark:x}");
    }
    // A record of many small fragments that never ends is too long as well.
    let mut stream = setup.connect();
    let fragment = [&(1024_u32.to_be_bytes())[..], &noise(2, 1024)].concat();
    let refused = (0..16 << 10).any(|_| stream.write_all(&fragment).is_err());
    assert!(refused, "16 MiB of fragments were taken");
    assert!(setup.memory() < before + (32 << 20), "{} then {}", before, setup.memory());
    setup.serves_others();
}

#[test]
fn ten_thousand_silent_connections() {
    let setup = Setup::new();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    // The server takes as many connections as a quarter of its file descriptors, and three addresses
    // may have three quarters of those.
    let most = (limit.maximum.unwrap_or(u64::MAX) / 4).min(16 << 10) / 10 * 7;
    let most = most.min(10_000);
    if most < 10_000 {
        weir_skip::skip(format!("descriptors for {most} of ten thousand connections only"));
    }
    setup.serves_others();
    let before = setup.memory();
    let mut silent = Vec::new();
    for n in 0..most {
        let mut stream = setup.connect_from(Ipv4Addr::new(127, 0, 0, 1 + (n % 3) as u8));
        // Some send nothing at all, some start a record and stop.
        match n % 4 {
            0 => {}
            1 => stream.write_all(&[0x80]).unwrap(),
            2 => stream.write_all(&record(&call(1, NFS, 4, 0))[..20]).unwrap(),
            _ => {
                stream.write_all(&record(&call(7, NFS, 3, 0))).unwrap();
                assert_eq!(accept_status(&reply(&mut stream).unwrap()), 0);
            }
        }
        silent.push(stream);
    }
    let each = setup.memory().saturating_sub(before) / most.max(1);
    println!("{most} connections, {each} bytes each");
    assert!(each < 32 << 10, "{each} bytes a connection");
    setup.serves_others();
}

#[test]
fn large_records_begun_and_never_ended() {
    let setup = Setup::new();
    let before = setup.memory();
    let begun: Vec<_> = (0..600)
        .map(|_| {
            let mut stream = setup.connect();
            stream.write_all(&(0x8000_0000_u32 | (1 << 20)).to_be_bytes()).unwrap();
            stream.write_all(&call(1, NFS, 4, 1)).unwrap();
            stream
        })
        .collect();
    setup.serves_others();
    assert!(setup.memory() < before + (128 << 20), "{} then {}", before, setup.memory());
    drop(begun);
}

#[test]
fn callers_that_never_read_replies_are_bounded() {
    let setup = Setup::new();
    setup.serves_others();
    let before = setup.memory();
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = setup.connect();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let call = record(&call(1, NFS, 4, 0));
        // Until the server has stopped reading from a peer that does not read.
        while stream.write_all(&call).is_ok() {}
        streams.push(stream);
    }
    assert!(setup.memory() < before + (64 << 20), "{} then {}", before, setup.memory());
    setup.serves_others();
}

/// An XDR opaque.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut wire = (bytes.len() as u32).to_be_bytes().to_vec();
    wire.extend(bytes);
    wire.resize(wire.len().next_multiple_of(4), 0);
    wire
}

/// The handle of a file of the export, over NFSv3.
fn handle(stream: &mut TcpStream, name: &str) -> Vec<u8> {
    const MOUNT: u32 = 100_005;
    let mut ask = |header: Vec<u8>, arguments: &[u8]| {
        stream.write_all(&record(&[&header, arguments].concat())).unwrap();
        let words = reply(stream).unwrap();
        assert_eq!((accept_status(&words), words[6]), (0, 0), "{words:?}");
        let len = words[7] as usize;
        let bytes: Vec<u8> = words[8..].iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes[..len].to_vec()
    };
    let root = ask(call(1, MOUNT, 3, 1), &opaque(b"/"));
    ask(call(2, NFS, 3, 3), &[opaque(&root), opaque(name.as_bytes())].concat())
}

/// A READ of NFSv3.
fn read_call(xid: u32, handle: &[u8], offset: u64, count: u32) -> Vec<u8> {
    let arguments = [&opaque(handle)[..], &offset.to_be_bytes(), &count.to_be_bytes()].concat();
    record(&[call(xid, NFS, 3, 6), arguments].concat())
}

#[test]
fn readers_that_take_nothing_block_only_themselves() {
    const READS: u32 = 100;
    let setup = Setup::new();
    setup.serves_others();
    let before = setup.memory();
    let mut slow: Vec<TcpStream> = (0..4).map(|_| setup.connect()).collect();
    for stream in &mut slow {
        let data = handle(stream, "data");
        for xid in 0..READS {
            // A megabyte each; all of them together are many times the cache.
            stream.write_all(&read_call(xid, &data, u64::from(xid % 8) << 20, 1 << 20)).unwrap();
        }
    }
    let mut other = setup.connect();
    let data = handle(&mut other, "data");
    for xid in 0..400 {
        other.write_all(&read_call(xid, &data, u64::from(xid) * 20_480, 4096)).unwrap();
        let words = reply(&mut other).unwrap();
        assert_eq!((words[0], accept_status(&words), words[6]), (xid, 0, 0));
    }
    assert!(setup.memory() < before + (96 << 20), "{} then {}", before, setup.memory());
    setup.serves_others();
    // They lose nothing either, once they read.
    for stream in &mut slow {
        let mut seen: Vec<u32> = (0..READS).map(|_| reply(stream).unwrap()[0]).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..READS));
    }
}

#[test]
fn connections_that_end_are_forgotten() {
    let setup = Setup::new();
    let descriptors = || {
        let open = format!("/proc/{}/fd", setup.server.child.id());
        fs::read_dir(open).unwrap().count()
    };
    setup.serves_others();
    let before = descriptors();
    for _ in 0..500 {
        drop(setup.connect());
    }
    within(PATIENCE, || (descriptors() <= before + 8).then_some(()));
}
