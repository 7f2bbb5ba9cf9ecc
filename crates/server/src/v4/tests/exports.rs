//! Several exports: the directories above them, their networks, and the lifetime of handles.

use super::delegations::WANT_READ;
use super::*;
use crate::export::{CachePolicy, ClientAccess, ClientRule};
use weir_nfs::v4::op::{
    close, commit, create, link, locku, open_downgrade, read, readdir, remove, rename, secinfo,
    write,
};
use weir_nfs::v4::types::{FsId, LockType, StableHow};
use weir_nfs::v4::{Bitmap, attr};
use weir_rpc::{AuthStatus, Denial};
use weir_vfs::{Access, Caller, CreateMode, SetAttr};

pub(super) const BUDGET: u64 = 32 << 20;

pub(super) fn cache() -> Cache {
    Cache::new(Config {
        budget_bytes: BUDGET,
        fast_read: true,
        readahead_bytes: 1 << 20,
        ..Config::default()
    })
    .unwrap()
}

pub(super) fn export(cache: &Cache, path: &str, options: ExportOptions) -> Export {
    let options = ExportOptions { squash: Squash::Nobody, ..options };
    let source = format!("/srv{path}").into();
    Export { path: path.into(), source, fs: cache.mount(MemoryFs::new()), options }
}

pub(super) async fn serve(exports: Vec<Export>) -> Fixture {
    serve_adjusted(exports, |_| {}).await
}

pub(super) async fn serve_adjusted(exports: Vec<Export>, adjust: fn(&mut ServerConfig)) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let fs = exports[0].fs.clone();
    let (server, addr, served) = start_adjusted(exports, dir.path(), adjust).await;
    Fixture { addr, server, served, fs, dir, adjust }
}

fn rule(network: &str, access: ClientAccess) -> ClientRule {
    ClientRule { network: network.parse().unwrap(), access, squash: None }
}

pub(super) fn walk(path: &'static str) -> Vec<Op> {
    let names = path.split('/').filter(|name| !name.is_empty());
    std::iter::once(Op::Putrootfh(())).chain(names.map(|n| Op::Lookup(n.into()))).collect()
}

fn then(mut ops: Vec<Op>, op: Op) -> Vec<Op> {
    ops.push(op);
    ops
}

fn then_create(ops: Vec<Op>) -> Vec<Op> {
    let attrs = Attrs { mode: Some(0o755), ..Attrs::default() }.into();
    let args = create::Args { kind: create::Kind::Directory, name: "new".into(), attrs };
    then(ops, Op::Create(args))
}

impl Client {
    async fn attrs(&mut self, ops: Vec<Op>, asked: &[u32]) -> Attrs {
        let results = self.ok(then(ops, Op::Getattr(Bitmap::of(asked)))).await;
        let Some(OpRes::Getattr(Ok(attrs))) = results.last() else { panic!("{results:?}") };
        attrs.clone()
    }

    async fn list(&mut self, path: &'static str) -> Vec<(String, Attrs)> {
        let attrs =
            Bitmap::of(&[attr::FSID, attr::FILEID, attr::MOUNTED_ON_FILEID, attr::RDATTR_ERROR]);
        let (cookie, verifier) = (0, [0; 8]);
        let args = readdir::Args { cookie, verifier, dir_count: 0, max_count: 4096, attrs };
        let results = self.ok(then(walk(path), Op::Readdir(args))).await;
        let Some(OpRes::Readdir(Ok(page))) = results.last() else { panic!("{results:?}") };
        assert!(page.eof);
        let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        page.entries.0.iter().map(|e| (name(&e.name), e.attrs.clone())).collect()
    }

    /// Opens and locks a file of an export; returns the stateids of both.
    async fn open_and_lock(&mut self, path: &'static str) -> [StateId; 2] {
        let opened = then(then(walk(path), self.open_op("file", 0)), Op::Getfh(()));
        let results = self.ok(opened).await;
        let (Some(OpRes::Open(Ok(opened))), Ok(file)) = (results.get(2), handle(&results)) else {
            panic!("{results:?}")
        };
        let lock = super::locks::lock_op(opened.stateid, LockType::Write, false);
        let OpRes::Lock(Ok(held)) = self.on(&file, lock).await else { panic!() };
        [opened.stateid, held]
    }

    pub(super) async fn handle_of(&mut self, path: &'static str) -> FileHandle {
        handle(&self.ok(then(walk(path), Op::Getfh(()))).await).unwrap()
    }
}

#[tokio::test]
async fn exports_are_leaves_of_one_tree() {
    let cache = cache();
    let paths = ["/home", "/srv/a", "/srv/b"];
    let f = serve(paths.map(|path| export(&cache, path, ExportOptions::default())).into()).await;
    let mut c = f.client("a").await;

    let asked = [attr::FSID, attr::FILEID, attr::MOUNTED_ON_FILEID, attr::CHANGE];
    let mut fsids = Vec::new();
    for path in ["/", "/srv", "/home", "/srv/a", "/srv/b"] {
        let attrs = c.attrs(walk(path), &asked).await;
        fsids.push(attrs.fsid.unwrap());
        let covers = attrs.fileid != attrs.mounted_on_fileid;
        assert_eq!(covers, paths.contains(&path), "{path}");
    }
    assert_eq!(fsids[0], FsId { major: 0, minor: 0 });
    assert_eq!(fsids[0], fsids[1]);
    fsids.sort_unstable_by_key(|fsid| (fsid.major, fsid.minor));
    fsids.dedup();
    assert_eq!(fsids.len(), 4, "each export has its own: {fsids:?}");

    // A listing shows the attributes of the export's root.
    let listed = c.list("/srv").await;
    assert_eq!(listed.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["a", "b"]);
    let a = c.attrs(walk("/srv/a"), &asked[..3]).await;
    assert_eq!(listed[0].1, a);
    assert_eq!(c.list("/").await.len(), 2);
    assert_eq!(c.list("/srv/a").await, []);

    // LOOKUP into the export, and LOOKUPP out of it.
    let srv = c.handle_of("/srv").await;
    let up = [Op::Lookupp(()), Op::Getfh(())];
    let results = c.ok(walk("/srv/a").into_iter().chain(up.clone()).collect()).await;
    assert_eq!(handle(&results).unwrap(), srv);
    let results = c.ok(walk("/srv").into_iter().chain(up.clone()).collect()).await;
    assert_eq!(handle(&results).unwrap(), c.handle_of("/").await);
    assert_eq!(c.fails(walk("/").into_iter().chain(up).collect()).await, Error::NoEnt);
    let public = c.ok(vec![Op::Putpubfh(()), Op::Getfh(())]).await;
    assert_eq!(handle(&public).unwrap(), c.handle_of("/").await);
    let flavors = c.ok(then(walk("/srv"), Op::Secinfo(secinfo::Args::from("a")))).await;
    assert!(matches!(flavors.last(), Some(OpRes::Secinfo(Ok(flavors))) if flavors.len() == 2));
    assert_eq!(c.fails(walk("/srv/none")).await, Error::NoEnt);
}

#[tokio::test]
async fn directories_above_exports_are_read_only_and_rename_across_exports_fails() {
    let cache = cache();
    let f = serve(["/a", "/b"].map(|p| export(&cache, p, ExportOptions::default())).into()).await;
    let mut c = f.client("a").await;
    assert_eq!(c.fails(then_create(walk("/"))).await, Error::RoFs);
    assert_eq!(c.fails(then(walk("/"), Op::Remove(remove::Args::from("a")))).await, Error::RoFs);
    let open = |name| then(walk("/"), c.open_op(name, 0));
    let (over, beside) = (open("a"), open("new"));
    assert_eq!(c.fails(over).await, Error::IsDir);
    assert_eq!(c.fails(beside).await, Error::RoFs);

    let made = then(then_create(walk("/a")), Op::Getfh(()));
    let new = handle(&c.ok(made).await).unwrap();
    assert!(matches!(c.on(&new, Op::Getfh(())).await, OpRes::Getfh(Ok(_))));
    let opened = then(walk("/a"), c.open_op("file", 0));
    c.ok(opened).await;
    let from = |path| then(walk(path), Op::Savefh(()));
    let rename = Op::Rename(rename::Args { from: "new".into(), to: "new".into() });
    let link = Op::Link(link::Args::from("file"));
    let across = |from: Vec<Op>, to, op: &Op| {
        from.into_iter().chain(walk(to)).chain([op.clone()]).collect::<Vec<_>>()
    };
    assert_eq!(c.fails(across(from("/a"), "/b", &rename)).await, Error::XDev);
    assert_eq!(c.fails(across(from("/a/file"), "/b", &link)).await, Error::XDev);
    assert_eq!(c.fails(across(from("/a"), "/", &rename)).await, Error::RoFs);
    assert_eq!(c.fails(across(from("/"), "/a", &rename)).await, Error::XDev);
    c.ok(across(from("/a/file"), "/a/new", &link)).await;
}

#[tokio::test]
async fn every_request_checks_the_networks_of_its_export() {
    let cache = cache();
    let [open, shut] = ["/open", "/shut"].map(|p| export(&cache, p, ExportOptions::default()));
    let f = serve(vec![open.clone(), shut.clone()]).await;
    let mut c = f.client("a").await;
    let held = c.handle_of("/shut").await;

    let with = |clients| Export {
        options: ExportOptions { clients, ..shut.options.clone() },
        ..shut.clone()
    };
    let elsewhere = vec![rule("192.0.2.0/24", ClientAccess::ReadWrite)];
    f.server.set_exports(vec![open.clone(), with(elsewhere)]).unwrap();
    assert_eq!(c.list("/").await.len(), 1, "hidden");
    assert_eq!(c.fails(walk("/shut")).await, Error::Access);
    let attrs = Op::Getattr(Bitmap::of(&[attr::FSID]));
    assert_eq!(c.on(&held, attrs.clone()).await, OpRes::Getattr(Err(Error::Access)));

    // The narrowest network that holds the client decides.
    let mixed = vec![
        rule("127.0.0.0/8", ClientAccess::ReadOnly),
        rule("*", ClientAccess::ReadWrite),
        rule("127.0.0.0/9", ClientAccess::None),
        rule("127.0.0.1", ClientAccess::ReadOnly),
    ];
    f.server.set_exports(vec![open.clone(), with(mixed)]).unwrap();
    assert!(matches!(c.on(&held, attrs).await, OpRes::Getattr(Ok(_))));
    assert_eq!(c.fails(then_create(walk("/shut"))).await, Error::RoFs);
    fill(&shut, "file", 4).await;
    let Op::Open(args) = c.open_op("file", 0) else { panic!() };
    let share_access = weir_nfs::v4::op::open::ShareAccess::READ;
    let reads = open::Args { share_access, ..args };
    c.ok(then(walk("/shut"), Op::Open(reads.clone()))).await;
    let empty = Attrs { size: Some(0), ..Attrs::default() };
    let how = open::How::Create(open::CreateHow::Unchecked(empty.into()));
    let truncates = Op::Open(open::Args { how, ..reads });
    assert_eq!(c.fails(then(walk("/shut"), truncates)).await, Error::RoFs);
}

#[tokio::test]
async fn a_client_gives_up_what_it_holds_in_an_export_that_is_closed_to_it() {
    let cache = cache();
    let [open, shut] = ["/open", "/shut"].map(|p| export(&cache, p, ExportOptions::default()));
    let f = serve(vec![open.clone(), shut.clone()]).await;
    let mut c = f.callable("a").await;
    let [opened, locked] = c.open_and_lock("/shut").await;
    fill(&shut, "delegated", 4).await;
    let file = c.handle_of("/shut/file").await;
    let delegated = c.handle_of("/shut/delegated").await;
    let delegation = c.delegated(&delegated, WANT_READ).await;

    let clients = vec![rule("192.0.2.0/24", ClientAccess::ReadWrite)];
    let options = ExportOptions { clients, ..shut.options.clone() };
    f.server.set_exports(vec![open, Export { options, ..shut.clone() }]).unwrap();
    let lock = super::locks::lock_op(opened, LockType::Write, false);
    assert_eq!(
        c.on(&file, lock).await,
        OpRes::Lock(Err(weir_nfs::v4::Detailed::Plain(Error::Access)))
    );
    let returned = c.on(&delegated, Op::Delegreturn(delegation)).await;
    assert_eq!(returned, OpRes::Delegreturn(Ok(())));
    let unlock = locku::Args {
        kind: LockType::Write,
        seqid: 0,
        lock_stateid: locked,
        offset: 0,
        length: u64::MAX,
    };
    let unlocked = c.on(&file, Op::Locku(unlock)).await;
    assert!(matches!(unlocked, OpRes::Locku(Ok(_))), "{unlocked:?}");
    let share_deny = open::ShareDeny::empty();
    let share_access = open::ShareAccess::READ;
    // Nothing was opened for reading only: the request gets as far as that.
    let less = open_downgrade::Args { open_stateid: opened, seqid: 0, share_access, share_deny };
    let lowered = c.on(&file, Op::OpenDowngrade(less)).await;
    assert_eq!(lowered, OpRes::OpenDowngrade(Err(Error::Inval)));
    let close = close::Args { seqid: 0, open_stateid: opened };
    let closed = c.on(&file, Op::Close(close)).await;
    assert!(matches!(closed, OpRes::Close(Ok(_))), "{closed:?}");
    let gone = [Err(Error::BadStateId); 3];
    assert_eq!(c.tested(&[opened, locked, delegation]).await, gone);
}

#[tokio::test]
async fn machines_that_no_export_is_for_take_nothing_from_clients() {
    let clients = vec![rule("127.0.0.1", ClientAccess::ReadWrite)];
    let options = ExportOptions { clients, ..ExportOptions::default() };
    let f = serve(vec![export(&cache(), "/a", options)]).await;
    let mut a = f.client("a").await;
    let states = a.open_and_lock("/a").await;

    // Another machine that takes the name of the client, as after a reboot.
    let restarted = exchange_id::Args {
        client: ClientOwner { verifier: *b"another.", owner: a.name.into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    };
    for (minor, op) in [(2, Op::ExchangeId(restarted)), (0, Op::Putrootfh(()))] {
        let mut outside = f.connect_from("127.0.0.2", "a", minor).await;
        outside.send("tag", 1, &[op]).await;
        let header: ReplyHeader = Decoder::new(outside.reply().await).get().unwrap();
        let denied = Denial::AuthError(AuthStatus::TooWeak);
        assert_eq!(header, ReplyHeader::denied(outside.xid, denied));
    }
    assert_eq!(a.tested(&states).await, [Ok(()); 2]);
}

#[tokio::test]
async fn handles_survive_reloads_and_restarts_until_their_export_is_removed() {
    let cache = cache();
    let [a, b, new] = ["/a", "/b", "/0"].map(|p| export(&cache, p, ExportOptions::default()));
    let mut f = serve(vec![a.clone(), b.clone()]).await;
    let mut c = f.client("a").await;
    let (root, held) = (c.handle_of("/").await, c.handle_of("/b").await);
    let asked = [attr::CHANGE, attr::FILEID];
    let before = c.attrs(walk("/"), &asked).await;
    let look = Op::Getattr(Bitmap::of(&asked));
    let opened = then(then(walk("/b"), c.open_op("file", 0)), Op::Getfh(()));
    let results = c.ok(opened).await;
    let (Some(OpRes::Open(Ok(opened))), Ok(file)) = (results.get(2), handle(&results)) else {
        panic!("{results:?}")
    };
    let data = Bytes::from_static(b"hello").into();
    let args =
        write::Args { stateid: opened.stateid, offset: 0, stable: StableHow::FileSync, data };
    assert!(matches!(c.on(&file, Op::Write(args)).await, OpRes::Write(Ok(_))));

    // A reload adds an export and changes their order: it is visible at once, and changes nothing else.
    f.server.set_exports(vec![new.clone(), b.clone(), a.clone()]).unwrap();
    assert_eq!(c.list("/").await.len(), 3);
    assert_ne!(c.attrs(walk("/"), &asked).await.change, before.change);
    let args = read::Args { stateid: opened.stateid, offset: 0, count: 9 };
    let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
    assert_eq!(read.data.to_bytes(), b"hello"[..]);

    f.server.set_exports(vec![a.clone()]).unwrap();
    assert_eq!(c.on(&held, look.clone()).await, OpRes::Putfh(Err(Error::Stale)));
    assert_eq!(c.fails(walk("/b")).await, Error::NoEnt);
    // Another directory under the same name is another export; the original directory is the same export again.
    let other = Export { source: "/elsewhere".into(), ..b.clone() };
    f.server.set_exports(vec![a.clone(), other]).unwrap();
    assert_eq!(c.on(&held, look.clone()).await, OpRes::Putfh(Err(Error::Stale)));
    f.server.set_exports(vec![b.clone(), a.clone()]).unwrap();
    assert!(matches!(c.on(&held, look.clone()).await, OpRes::Getattr(Ok(_))));
    assert_eq!(c.attrs(walk("/"), &asked).await, before);

    f.server.stop();
    (&mut f.served).await.unwrap().unwrap();
    drop(c);
    let state_dir = f.dir.path().to_owned();
    let placeholder = tempfile::tempdir().unwrap();
    let (server, ..) = start_with(vec![a.clone()], placeholder.path()).await;
    drop(std::mem::replace(&mut f.server, server));
    (f.server, f.addr, f.served) = start_with(vec![new, a, b], &state_dir).await;
    let mut c = f.client("b").await;
    for handle in [held, root] {
        assert!(matches!(c.on(&handle, look.clone()).await, OpRes::Getattr(Ok(_))));
    }
}

#[tokio::test]
async fn an_export_that_was_removed_has_another_write_verifier_when_it_is_back() {
    let cache = cache();
    let a = export(&cache, "/a", ExportOptions::default());
    let store = MemoryFs::new();
    let shared =
        |fs| Export { path: "/b".into(), source: "/srv/b".into(), fs, options: a.options.clone() };
    let f = serve(vec![a.clone(), shared(cache.mount(store.clone()))]).await;
    let mut c = f.client("a").await;
    let opened = then(then(walk("/b"), c.open_op("file", 0)), Op::Getfh(()));
    let results = c.ok(opened).await;
    let (Some(OpRes::Open(Ok(opened))), Ok(file)) = (results.get(2), handle(&results)) else {
        panic!("{results:?}")
    };
    let data = Bytes::from_static(b"hello").into();
    let stable = StableHow::Unstable;
    let args = write::Args { stateid: opened.stateid, offset: 0, stable, data };
    let OpRes::Write(Ok(written)) = c.on(&file, Op::Write(args)).await else { panic!() };
    let mut seen = vec![written.verifier];
    for _ in 0..2 {
        f.server.set_exports(vec![a.clone()]).unwrap();
        // What was not committed may be lost here, without a trace in the next mount of the store.
        f.server.set_exports(vec![a.clone(), shared(cache.mount(store.clone()))]).unwrap();
        let commit = Op::Commit(commit::Args { offset: 0, count: 0 });
        let OpRes::Commit(Ok(committed)) = c.on(&file, commit).await else { panic!() };
        assert!(!seen.contains(&committed), "{seen:?}");
        seen.push(committed);
    }
}

#[tokio::test]
async fn removing_an_export_closes_its_open_files() {
    let cache = cache();
    let [a, b] = ["/a", "/b"].map(|p| export(&cache, p, ExportOptions::default()));
    let weak = b.fs.downgrade();
    let f = serve(vec![a.clone(), b]).await;
    let mut c = f.client("a").await;
    let states = c.open_and_lock("/b").await;
    assert!(weak.upgrade().is_some());
    f.server.set_exports(vec![a]).unwrap();
    assert!(weak.upgrade().is_none(), "its file system is let go of");
    assert_eq!(c.list("/").await.len(), 1);
    assert_eq!(c.status_flags, sequence::StatusFlags::empty(), "other exports are not concerned");
    assert_eq!(c.tested(&states).await, [Err(Error::AdminRevoked); 2]);
    c.ok(vec![Op::FreeStateid(states[0])]).await;
    assert_eq!(c.tested(&states).await, [Err(Error::BadStateId); 2]);
}

/// Creates a file of `len` bytes in an export, bypassing the cache.
pub(super) async fn fill(export: &Export, name: &str, len: u64) {
    let fs = &export.fs;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let made = fs
        .create(&Caller::Own, fs.root().entry(name.as_bytes()).with(&set), CreateMode::MustBeNew)
        .await
        .unwrap();
    let file = fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await.unwrap();
    let block = vec![7; 1 << 20];
    for offset in (0..len).step_by(block.len()) {
        let bytes = &block[..(len - offset).min(block.len() as u64) as usize];
        file.write_at_async(bytes, offset, weir_vfs::IoFlags::UNCACHED).await.unwrap();
    }
    file.sync_async(false).await.unwrap();
}

impl Client {
    pub(super) async fn stream(&mut self, file: &FileHandle, len: u64) {
        for offset in (0..len).step_by(1 << 20) {
            let args = read::Args { stateid: StateId::ANONYMOUS, offset, count: 1 << 20 };
            let OpRes::Read(Ok(read)) = self.on(file, Op::Read(args)).await else { panic!() };
            assert!(!read.data.is_empty());
        }
    }
}

#[tokio::test]
async fn streams_through_uncached_exports_evict_no_pages() {
    const HOT: u64 = BUDGET / 2;
    let cache = cache();
    let auto = CachePolicy::Auto { stream_bytes: BUDGET / 4 };
    let policies =
        [("/hot", CachePolicy::Cached), ("/past", CachePolicy::Uncached), ("/auto", auto)];
    let exports = policies
        .map(|(path, cache_policy)| {
            (path, ExportOptions { cache: cache_policy, ..Default::default() })
        })
        .map(|(path, options)| export(&cache, path, options));
    let [hot, past, automatic] = &exports;
    fill(hot, "file", HOT).await;
    fill(past, "file", 4 * BUDGET).await;
    fill(automatic, "long", 4 * BUDGET).await;
    fill(automatic, "short", BUDGET / 8).await;
    let f = serve(exports.to_vec()).await;
    let mut c = f.client("a").await;
    let files = [
        c.handle_of("/hot/file").await,
        c.handle_of("/past/file").await,
        c.handle_of("/auto/long").await,
        c.handle_of("/auto/short").await,
    ];
    let [hot, past, long, short] = &files;
    // The pages from creating the files are in the cache, too: the hot set needs some rounds to be hotter.
    let mut rounds = 0;
    loop {
        let filled = cache.stats().fill_pages;
        c.stream(hot, HOT).await;
        if cache.stats().fill_pages == filled {
            break;
        }
        rounds += 1;
        assert!(rounds < 16, "the hot set does not become resident");
    }

    let used = cache.used_bytes();
    c.stream(past, 4 * BUDGET).await;
    let after = cache.stats();
    assert_eq!(after.lost_pages, 0);
    assert!(after.pruned_pages >= 4 * BUDGET / 4096 - 1024, "{after:?}");
    assert!(cache.used_bytes() <= used + (1 << 20), "what was streamed is gone");

    c.stream(long, 4 * BUDGET).await;
    c.stream(short, BUDGET / 8).await;
    let after = cache.stats();
    assert_eq!(after.lost_pages, 0);
    c.stream(short, BUDGET / 8).await;
    assert_eq!(cache.stats().fill_pages, after.fill_pages, "what is short stays");

    // The same with writes.
    let opened = then(then(walk("/past"), c.open_op("written", 0)), Op::Getfh(()));
    let results = c.ok(opened).await;
    let (Some(OpRes::Open(Ok(opened))), Ok(file)) = (results.get(2), handle(&results)) else {
        panic!("{results:?}")
    };
    let block = Bytes::from(vec![1; 512 << 10]);
    for offset in (0..2 * BUDGET).step_by(block.len()) {
        let data = block.clone().into();
        let args =
            write::Args { stateid: opened.stateid, offset, stable: StableHow::Unstable, data };
        assert!(matches!(c.on(&file, Op::Write(args)).await, OpRes::Write(Ok(_))));
    }

    let filled = cache.stats().fill_pages;
    c.stream(hot, HOT).await;
    assert_eq!(cache.stats().fill_pages, filled, "the hot set is as it was");
    assert_eq!(cache.stats().lost_pages, 0);
}

#[tokio::test]
async fn a_change_of_a_directory_in_two_exports_is_not_reported_as_atomic() {
    let cache = cache();
    let a = export(&cache, "/a", ExportOptions::default());
    let twin = Export { path: "/twin".into(), ..a.clone() };
    let f = serve(vec![a.clone()]).await;
    let mut c = f.client("a").await;
    let dir = c.handle_of("/a").await;
    for (name, with, atomic) in [("one", None, true), ("two", Some(twin), false)] {
        f.server.set_exports([a.clone()].into_iter().chain(with).collect()).unwrap();
        let made = create::Args {
            kind: create::Kind::Directory,
            name: name.into(),
            attrs: Attrs::default().into(),
        };
        let OpRes::Create(Ok(created)) = c.on(&dir, Op::Create(made)).await else { panic!() };
        assert_eq!(created.change.atomic, atomic, "{name}");
    }
}
