//! What a READ of 4 KiB costs the server: a client on loopback reads a resident file over version 4.0, with 1 and with
//! 32 calls in flight on each of 1 and of 8 connections. Prints reads per second, and the processor time of the
//! server's threads for each read.
//!
//! `cargo bench -p weir-server --bench read`

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use weir_nfs::v4::op::read;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{CompoundHeader, Op, PROC_COMPOUND, PROGRAM, VERSION};
use weir_pagecache::{Cache, Config};
use weir_rpc::{CallHeader, OpaqueAuth, finish_record, start_record};
use weir_server::{Export, ExportOptions, Server, ServerConfig};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

const SIZE: u64 = 64 << 20;
const BLOCK: u32 = 4096;
const CONNECTIONS: usize = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(600);

/// A call of these operations, as a record.
fn call(ops: &[Op]) -> Vec<u8> {
    let mut e = start_record();
    let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader {
        xid: 7,
        program: PROGRAM,
        version: VERSION,
        procedure: PROC_COMPOUND,
        cred,
        verf,
    };
    e.put(&header);
    e.put(&CompoundHeader { tag: "".into(), minor_version: 0, operations: ops.len() as u32 });
    ops.iter().for_each(|op| e.put(op));
    finish_record(e).to_bytes().to_vec()
}

/// Reads a reply into `record`, without the record's mark; returns its length.
fn reply(stream: &mut impl Read, record: &mut [u8]) -> usize {
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let len = (u32::from_be_bytes(header) & 0x7fff_ffff) as usize;
    stream.read_exact(&mut record[..len]).unwrap();
    len
}

/// Processor time of this thread, and of all threads of this process.
fn processor_times() -> (Duration, Duration) {
    let of = |path: &std::path::Path| {
        let stat = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        Duration::from_nanos(stat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0))
    };
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    (of("/proc/thread-self".as_ref()), all.map(|task| of(&task.unwrap().path())).sum())
}

/// Reads with this many calls in flight on each connection; returns reads per second, and the server's time for each.
fn measure(streams: &[TcpStream], calls: &[Vec<u8>], depth: usize) -> (f64, Duration) {
    let mut record = vec![0; 2 * BLOCK as usize];
    let mut readers: Vec<_> =
        streams.iter().map(|from| BufReader::with_capacity(256 << 10, from)).collect();
    let mut next = calls.iter().cycle();
    let mut send = |mut to: &TcpStream, count: usize| {
        let together: Vec<u8> = next.by_ref().take(count).flatten().copied().collect();
        to.write_all(&together).unwrap();
    };
    let (before, begun) = (processor_times(), Instant::now());
    let mut reads = 0u32;
    streams.iter().for_each(|to| send(to, depth));
    while begun.elapsed() < ROUND {
        for from in &mut readers {
            // As many as have arrived are answered together, as clients do.
            let mut arrived = 0;
            while arrived == 0 || (arrived < depth && from.buffer().len() > 2 * BLOCK as usize) {
                assert!(reply(from, &mut record) > BLOCK as usize, "a read failed");
                arrived += 1;
            }
            reads += arrived as u32;
            send(from.get_ref(), arrived);
        }
    }
    for from in &mut readers {
        for _ in 0..depth {
            reply(from, &mut record);
        }
    }
    let after = processor_times();
    let server = (after.1 - before.1).saturating_sub(after.0 - before.0);
    (f64::from(reads) / begun.elapsed().as_secs_f64(), server / reads)
}

/// Serves a resident file, "f", on threads of its own.
fn serve(state_dir: &std::path::Path) -> (tokio::runtime::Runtime, SocketAddr) {
    let cache = Cache::new(Config { budget_bytes: 2 * SIZE, ..Config::default() }).unwrap();
    let fs = cache.mount(MemoryFs::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let file = fs.root().entry(b"f");
        let made = fs.create(&Caller::Own, file.with(&set), CreateMode::MustBeNew).await.unwrap();
        let file = fs.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap();
        for at in (0..SIZE).step_by(1 << 20) {
            file.write_at_async(&[7; 1 << 20], at, IoFlags::empty()).await.unwrap();
        }
        let options = ExportOptions::default();
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        let mut config = ServerConfig::new(vec![export], state_dir);
        config.grace = Duration::ZERO;
        config.admission.secure = false;
        let server = Server::new(config).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { server.serve(listener).await });
        address
    });
    (runtime, address)
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let (_runtime, address) = serve(dir.path());
    let streams: Vec<_> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    streams.iter().for_each(|stream| stream.set_nodelay(true).unwrap());
    let mut stream = &streams[0];
    let look_up = [Op::Putrootfh(()), Op::Lookup(b"f"[..].into()), Op::Getfh(())];
    stream.write_all(&call(&look_up)).unwrap();
    let mut record = vec![0; 1024];
    let len = reply(&mut stream, &mut record);
    // The handle is last: its length is the only word that says how many bytes follow it.
    let handle = (0..len - 4)
        .step_by(4)
        .find(|&at| record[at..at + 4] == ((len - at - 4) as u32).to_be_bytes())
        .map(|at| record[at + 4..len].to_vec())
        .expect("a handle");
    let calls: Vec<_> = (0..SIZE / u64::from(BLOCK))
        .map(|n| n.wrapping_mul(7919) % (SIZE / u64::from(BLOCK)) * u64::from(BLOCK))
        .map(|offset| {
            let stateid = StateId { seqid: 0, other: [0; 12] };
            let args = read::Args { stateid, offset, count: BLOCK };
            call(&[Op::Putfh(handle[..].into()), Op::Read(args)])
        })
        .collect();
    for round in 0..ROUNDS {
        for (connections, depth) in [(1, 1), (1, 32), (CONNECTIONS, 1), (CONNECTIONS, 32)] {
            let (rate, time) = measure(&streams[..connections], &calls, depth);
            println!(
                "round {round}, {depth:2} in flight on {connections}: {rate:7.0} reads/s, {time:?} of the server each"
            );
        }
    }
}
