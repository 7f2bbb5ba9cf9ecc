//! Copies in the background.

use super::exports::{BUDGET, cache, export, fill, serve, walk};
use super::*;
use crate::export::CachePolicy;
use std::time::{Duration, Instant};
use weir_nfs::v4::CbOp;
use weir_nfs::v4::op::{copy, offload_status, read, write};
use weir_nfs::v4::types::StableHow;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;

/// More than the server copies before it answers a COPY; all but the ends is a hole.
const LEN: u64 = 300 << 20;
const END: &[u8] = b"the end";
/// Length of the source of [`with_faults`]: also more than the server copies before it answers.
const FAULTY_LEN: u64 = 65 << 20;

/// A long file with a little data, another one, and their stateids.
async fn two_files(c: &mut Client) -> [(FileHandle, StateId); 2] {
    let (source, stateid) = c.open("source").await;
    for (offset, bytes) in [(0, &b"front"[..]), (LEN - END.len() as u64, END)] {
        let data = weir_nfs::Data::Bytes(Bytes::copy_from_slice(bytes));
        let args = write::Args { stateid, offset, stable: StableHow::Unstable, data };
        assert!(matches!(c.on(&source, Op::Write(args)).await, OpRes::Write(Ok(_))));
    }
    [(source, stateid), c.open("destination").await]
}

async fn start(
    c: &mut Client,
    files: &[(FileHandle, StateId); 2],
    synchronous: bool,
) -> copy::Copied {
    start_at(c, files, 0, synchronous).await
}

/// Starts a copy of all of the first file to this offset of the second.
async fn start_at(
    c: &mut Client,
    [(source, from), (destination, to)]: &[(FileHandle, StateId); 2],
    destination_offset: u64,
    synchronous: bool,
) -> copy::Copied {
    let args = copy::Args {
        source: *from,
        destination: *to,
        source_offset: 0,
        destination_offset,
        count: 0,
        consecutive: true,
        synchronous,
        source_servers: List::default(),
    };
    let put = |file: &FileHandle| Op::Putfh(file.clone());
    let mut results =
        c.ok(vec![put(source), Op::Savefh(()), put(destination), Op::Copy(args)]).await;
    match results.pop() {
        Some(OpRes::Copy(Ok(copied))) => copied,
        other => panic!("{other:?}"),
    }
}

/// A server of `/x/source`, all data, and `/x/destination` of `len` bytes, on a store with faults.
async fn with_faults(len: u64) -> (Fixture, Arc<Fault>) {
    let (cache, fault) = (cache(), Fault::over(MemoryFs::new(), 1));
    let mut exported = export(&cache, "/x", ExportOptions::default());
    exported.fs = cache.mount(fault.clone());
    fill(&exported, "source", FAULTY_LEN).await;
    fill(&exported, "destination", len).await;
    (serve(vec![exported]).await, fault)
}

/// The result of the copy `name` to the file `to`, after its end.
async fn ended(c: &mut Client, to: &FileHandle, name: StateId) -> offload_status::Progress {
    loop {
        match c.on(to, Op::OffloadStatus(name)).await {
            OpRes::OffloadStatus(Ok(progress)) if progress.complete.is_empty() => {}
            OpRes::OffloadStatus(Ok(progress)) => return progress,
            other => panic!("{other:?}"),
        }
    }
}

async fn ends_well(c: &mut Client, (file, stateid): &(FileHandle, StateId)) -> bool {
    let args = read::Args { stateid: *stateid, offset: LEN - END.len() as u64, count: 100 };
    let OpRes::Read(Ok(read)) = c.on(file, Op::Read(args)).await else { panic!() };
    read.eof && read.data.to_bytes() == END
}

#[tokio::test]
async fn a_long_copy_runs_in_the_background_and_cb_offload_reports_its_end() {
    let f = Fixture::new().await;
    let mut c = f.callable("client").await;
    let files = two_files(&mut c).await;
    let copied = start(&mut c, &files, false).await;
    let [name] = &copied.response.callback_id[..] else { panic!("{copied:?}") };
    assert!(!copied.requirements.synchronous);
    let CbOp::Offload(told) = c.called().await else { panic!() };
    assert_eq!((&told.file, told.stateid), (&files[1].0, *name));
    let outcome = told.outcome.unwrap();
    assert_eq!((outcome.count, outcome.verifier), (LEN, copied.response.verifier));
    assert!(ends_well(&mut c, &files[1]).await);
    // The server forgets the copy once it has reported its end.
    let begun = Instant::now();
    while c.on(&files[1].0, Op::OffloadStatus(*name)).await
        != OpRes::OffloadStatus(Err(Error::BadStateId))
    {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    let found =
        f.fs.lookup(&weir_vfs::Caller::Own, f.fs.root().entry(b"destination")).await.unwrap();
    assert!(found.allocated < 1 << 20, "{} bytes are in use", found.allocated);
}

#[tokio::test]
async fn offload_status_reports_progress_and_offload_cancel_ends_a_copy() {
    let f = Fixture::new().await;
    let mut c = f.callable("client").await;
    let files = two_files(&mut c).await;
    c.service.is_silent = true;
    let copied = start(&mut c, &files, false).await;
    let name = copied.response.callback_id[0];
    let begun = Instant::now();
    let count = loop {
        assert!(begun.elapsed() < Duration::from_secs(60));
        match c.on(&files[1].0, Op::OffloadStatus(name)).await {
            OpRes::OffloadStatus(Ok(progress)) if progress.complete.is_empty() => {}
            OpRes::OffloadStatus(Ok(progress)) => {
                assert_eq!(progress.complete[..], [0]);
                break progress.count;
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(count, LEN);

    c = f.callable("other").await;
    c.service.is_silent = true;
    let files = two_files(&mut c).await;
    let name = start(&mut c, &files, false).await.response.callback_id[0];
    // With another file or another client the copy's stateid is unknown.
    let other = c.on(&files[0].0, Op::OffloadCancel(name)).await;
    assert_eq!(other, OpRes::OffloadCancel(Err(Error::BadStateId)));
    let mut stranger = f.client("stranger").await;
    let foreign = stranger.on(&files[1].0, Op::OffloadCancel(name)).await;
    assert_eq!(foreign, OpRes::OffloadCancel(Err(Error::BadStateId)));
    assert_eq!(c.on(&files[1].0, Op::OffloadCancel(name)).await, OpRes::OffloadCancel(Ok(())));
    let begun = Instant::now();
    while c.on(&files[1].0, Op::OffloadStatus(name)).await
        != OpRes::OffloadStatus(Err(Error::BadStateId))
    {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

#[tokio::test]
async fn a_synchronous_copy_or_one_without_callbacks_completes_in_its_reply() {
    let f = Fixture::new().await;
    let (mut waits, mut deaf) = (f.callable("waits").await, f.client("deaf").await);
    for (c, synchronous) in [(&mut waits, true), (&mut deaf, false)] {
        let files = two_files(c).await;
        let copied = start(c, &files, synchronous).await;
        assert!(copied.response.callback_id.is_empty() && copied.requirements.synchronous);
        assert_eq!(copied.response.count, LEN, "holes cost nothing");
        assert!(ends_well(c, &files[1]).await);
    }
}

#[tokio::test]
async fn a_copy_in_an_uncached_export_evicts_no_pages() {
    const HOT: u64 = BUDGET / 2;
    const COPIED: u64 = 3 * BUDGET;
    let cache = cache();
    let uncached = ExportOptions { cache: CachePolicy::Uncached, ..ExportOptions::default() };
    let exports =
        [export(&cache, "/hot", ExportOptions::default()), export(&cache, "/past", uncached)];
    fill(&exports[0], "file", HOT).await;
    fill(&exports[1], "source", COPIED).await;
    let f = serve(exports.into()).await;
    let (mut waits, mut goes_on) = (f.client("waits").await, f.callable("goes on").await);
    let hot = waits.handle_of("/hot/file").await;
    while {
        let filled = cache.stats().fill_pages;
        waits.stream(&hot, HOT).await;
        cache.stats().fill_pages > filled
    } {}
    let used = cache.used_bytes();

    for (c, synchronous) in [(&mut waits, true), (&mut goes_on, false)] {
        let source = c.handle_of("/past/source").await;
        let mut ops = walk("/past");
        ops.extend([c.open_op(if synchronous { "one" } else { "two" }, 0), Op::Getfh(())]);
        let results = c.ok(ops).await;
        let (Some(OpRes::Open(Ok(opened))), Ok(to)) = (results.get(2), handle(&results)) else {
            panic!("{results:?}")
        };
        let before = cache.stats();
        let files = [(source, StateId::ANONYMOUS), (to.clone(), opened.stateid)];
        let copied = start(c, &files, synchronous).await;
        let count = match &copied.response.callback_id[..] {
            [] => copied.response.count,
            [name] => loop {
                match c.on(&to, Op::OffloadStatus(*name)).await {
                    OpRes::OffloadStatus(Ok(progress)) if progress.complete.is_empty() => {}
                    OpRes::OffloadStatus(Ok(progress)) => break progress.count,
                    // The end was reported.
                    OpRes::OffloadStatus(Err(Error::BadStateId)) => break COPIED,
                    other => panic!("{other:?}"),
                }
            },
            other => panic!("{other:?}"),
        };
        // A synchronous copy is answered after 64 MiB, at the end of a piece.
        let expected = if synchronous { 64 << 20..=65 << 20 } else { COPIED..=COPIED };
        assert!(expected.contains(&count), "{count} bytes were copied");
        let args = weir_nfs::v4::op::commit::Args { offset: 0, count: 0 };
        assert!(matches!(c.on(&to, Op::Commit(args)).await, OpRes::Commit(Ok(_))));
        let after = cache.stats();
        let pruned = after.pruned_pages - before.pruned_pages;
        assert!(pruned >= 2 * count / 4096 - 1024, "{pruned} pages were pruned");
        assert!(cache.used_bytes() <= used + (1 << 20), "what was copied is gone");
    }
    let filled = cache.stats().fill_pages;
    waits.stream(&hot, HOT).await;
    assert_eq!(cache.stats().fill_pages, filled, "the hot set is as it was");
    assert_eq!(cache.stats().lost_pages, 0);
}

/// Starts a copy by a client that does not answer callbacks; its reads are held. Returns the handle of its destination,
/// and its name.
async fn start_held(c: &mut Client, fault: &Fault) -> (FileHandle, StateId) {
    c.service.is_silent = true;
    let source = c.handle_of("/x/source").await;
    let to = c.handle_of("/x/destination").await;
    fault.add(Rule { call: Call::Read, when: When::Always, what: What::Hold });
    let files = [(source, StateId::ANONYMOUS), (to.clone(), StateId::ANONYMOUS)];
    let copied = start(c, &files, false).await;
    let [name] = copied.response.callback_id[..] else { panic!("{copied:?}") };
    (to, name)
}

#[tokio::test]
async fn an_open_that_denies_writing_ends_a_copy_without_waiting_for_its_source() {
    let (f, fault) = with_faults(0).await;
    let (mut c, mut other) = (f.callable("client").await, f.client("other").await);
    let (to, name) = start_held(&mut c, &fault).await;
    while fault.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    const DENY_WRITE: u32 = 2;
    let mut ops = walk("/x");
    ops.push(other.open_op("destination", DENY_WRITE));
    let opened = tokio::time::timeout(Duration::from_secs(120), other.ok(ops)).await;
    assert!(matches!(opened.expect("it waits")[..], [.., OpRes::Open(Ok(_))]));
    fault.clear();
    fault.release();
    let ended = ended(&mut c, &to, name).await;
    assert_eq!((ended.count, &ended.complete[..]), (0, &[Error::Locked as u32][..]));
    let found =
        f.fs.lookup(&weir_vfs::Caller::Own, f.fs.root().entry(b"destination")).await.unwrap();
    assert_eq!(found.size, 0);
}

#[tokio::test]
async fn a_copy_whose_state_is_gone_ends_although_its_source_hangs() {
    let (f, fault) = with_faults(0).await;
    let (mut c, mut other) = (f.callable("client").await, f.client("other").await);
    let (to, name) = start_held(&mut c, &fault).await;
    let mut ops = walk("/x");
    const DENY_WRITE: u32 = 2;
    ops.push(other.open_op("destination", DENY_WRITE));
    other.ok(ops).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), ended(&mut c, &to, name));
    let ended = ended.await.expect("it waits for the source");
    assert_eq!((ended.count, &ended.complete[..]), (0, &[Error::Locked as u32][..]));
    fault.clear();
    fault.release();
}

#[tokio::test]
async fn a_copy_ends_when_its_export_becomes_read_only_or_takes_its_user_for_another() {
    let read_only = ExportOptions { read_only: true, ..ExportOptions::default() };
    for (options, squash, outcome) in [
        (read_only, Squash::Nobody, Error::RoFs),
        (ExportOptions::default(), Squash::All, Error::Access),
    ] {
        let (f, fault) = with_faults(0).await;
        let mut c = f.callable("client").await;
        let (to, name) = start_held(&mut c, &fault).await;
        while fault.held() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut changed = export(f.fs.cache(), "/x", options);
        changed.options.squash = squash;
        changed.fs = f.fs.clone();
        f.server.set_exports(vec![changed]).unwrap();
        fault.clear();
        fault.release();
        let ended = ended(&mut c, &to, name).await;
        assert_eq!((ended.count, &ended.complete[..]), (0, &[outcome as u32][..]));
    }
}

#[tokio::test]
async fn a_copy_ends_when_its_user_loses_the_right_to_either_file() {
    let own = weir_vfs::Caller::Own;
    for withdrawn in [&b"source"[..], b"destination"] {
        let (f, fault) = with_faults(0).await;
        let mut c = f.callable("client").await;
        let mode = async |name: &[u8], mode| {
            let id = f.fs.lookup(&own, f.fs.root().entry(name)).await.unwrap().id;
            let set = weir_vfs::SetAttr { mode: Some(mode), ..Default::default() };
            f.fs.setattr(&own, id, &set).await.unwrap();
        };
        mode(b"destination", 0o666).await;
        c.cred = OpaqueAuth::from(&AuthSys { uid: 5, gid: 5, ..AuthSys::default() });
        let (to, name) = start_held(&mut c, &fault).await;
        while fault.held() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        mode(withdrawn, 0o600).await;
        fault.clear();
        fault.release();
        let ended = ended(&mut c, &to, name).await;
        assert_eq!((ended.count, &ended.complete[..]), (0, &[Error::Access as u32][..]));
    }
}

#[tokio::test]
async fn an_open_gets_delay_while_a_copy_writes_to_a_hanging_store() {
    let (f, fault) = with_faults(8192).await;
    let (mut c, mut other) = (f.callable("client").await, f.client("other").await);
    c.service.is_silent = true;
    let source = c.handle_of("/x/source").await;
    let to = c.handle_of("/x/destination").await;
    // The first piece is in the cache, so the copy waits for the page in the middle of which it begins to write.
    c.stream(&source, 1 << 20).await;
    fault.add(Rule { call: Call::Read, when: When::Always, what: What::Hold });
    let files = [(source, StateId::ANONYMOUS), (to, StateId::ANONYMOUS)];
    assert!(!start_at(&mut c, &files, 1, false).await.requirements.synchronous);
    while fault.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    const DENY_WRITE: u32 = 2;
    let mut ops = walk("/x");
    ops.push(other.open_op("destination", DENY_WRITE));
    let refused = tokio::time::timeout(Duration::from_secs(60), other.fails(ops.clone())).await;
    assert_eq!(refused.expect("it waits for the store"), Error::Delay);
    let mut third = f.client("third").await;
    let mut its_ops = walk("/x");
    its_ops.push(third.open_op("destination", DENY_WRITE));
    let refused = third.fails(its_ops).await;
    assert_eq!(refused, Error::Delay, "the open that was refused denies nothing");
    fault.clear();
    fault.release();
    other.ok(ops).await;
}

#[tokio::test]
async fn completing_a_copy_makes_no_call_to_the_store() {
    let (f, fault) = with_faults(0).await;
    let mut c = f.callable("client").await;
    c.service.is_silent = true;
    let source = c.handle_of("/x/source").await;
    let to = c.handle_of("/x/destination").await;
    let id =
        f.fs.lookup(&weir_vfs::Caller::Own, f.fs.root().entry(b"destination")).await.unwrap().id;
    let set = weir_vfs::SetAttr { mode: Some(0o666), ..Default::default() };
    f.fs.setattr(&weir_vfs::Caller::Own, id, &set).await.unwrap();
    c.cred = OpaqueAuth::from(&AuthSys { uid: 5, gid: 5, ..AuthSys::default() });
    let last = FAULTY_LEN - 4096..FAULTY_LEN;
    fault.add(Rule { call: Call::Read, when: When::Touching(last), what: What::Hold });
    let files = [(source, StateId::ANONYMOUS), (to.clone(), StateId::ANONYMOUS)];
    let copied = start(&mut c, &files, false).await;
    let [name] = copied.response.callback_id[..] else { panic!("{copied:?}") };
    // The last piece waits, and all before are written.
    let all_but_one = FAULTY_LEN - (1 << 20);
    loop {
        let progress = c.on(&to, Op::OffloadStatus(name)).await;
        let OpRes::OffloadStatus(Ok(progress)) = progress else { panic!("{progress:?}") };
        if progress.count == all_but_one && fault.held() > 0 {
            break;
        }
    }
    // Each piece reads the destination's attributes once, before it is written.
    for _ in 0..16 {
        let what = What::Fail(weir_vfs::Error::Io);
        fault.add(Rule { call: Call::Getattr, when: When::Nth(1), what });
    }
    fault.release();
    let ended = ended(&mut c, &to, name).await;
    assert_eq!((ended.count, &ended.complete[..]), (FAULTY_LEN, &[0][..]));
}

#[tokio::test]
async fn a_background_copy_clears_set_user_id_set_after_its_start() {
    let (f, fault) = with_faults(0).await;
    let mut c = f.callable("client").await;
    c.service.is_silent = true;
    let source = c.handle_of("/x/source").await;
    let to = c.handle_of("/x/destination").await;
    let id =
        f.fs.lookup(&weir_vfs::Caller::Own, f.fs.root().entry(b"destination")).await.unwrap().id;
    let mode = async |mode| {
        let set = weir_vfs::SetAttr { mode: Some(mode), ..Default::default() };
        f.fs.setattr(&weir_vfs::Caller::Own, id, &set).await.unwrap();
    };
    mode(0o666).await;
    c.cred = OpaqueAuth::from(&AuthSys { uid: 5, gid: 5, ..AuthSys::default() });
    fault.add(Rule { call: Call::Read, when: When::Always, what: What::Hold });
    let files = [(source, StateId::ANONYMOUS), (to.clone(), StateId::ANONYMOUS)];
    let copied = start(&mut c, &files, false).await;
    let [name] = copied.response.callback_id[..] else { panic!("{copied:?}") };
    while fault.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    mode(0o4777).await;
    fault.clear();
    fault.release();
    let ended = ended(&mut c, &to, name).await;
    assert_eq!((ended.count, &ended.complete[..]), (FAULTY_LEN, &[0][..]));
    assert_eq!(f.fs.getattr(id).await.unwrap().mode, 0o777);
}
