//! Inode numbers of a mount whose store has files of several file systems.

use super::Kernel;
use crate::mounted::Settings;
use crate::wire::abi::{self, opcode};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::number_elsewhere;
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Attr, Caller, CreateMode, DirPage, EntryName, FileId, FileSystem, FileSystemDecorator,
    ReaddirRequest, Result, SetAttr,
};
use zerocopy::{FromBytes, IntoBytes};

/// The file systems of the root, and of the files that were made last.
const ROOTS: u64 = 5;
const OTHER: u64 = 9;

/// A store in which the files from an inode number on are of another file system than the first ones.
struct Two {
    below: Arc<MemoryFs>,
    others_from: u64,
    first: AtomicU64,
}

impl Two {
    fn new(below: Arc<MemoryFs>, others_from: u64) -> Arc<Self> {
        Arc::new(Self { below, others_from, first: AtomicU64::new(ROOTS) })
    }

    fn of(&self, attr: Attr) -> Attr {
        let is_first = attr.id.ino < self.others_from;
        Attr { fsid: if is_first { self.first.load(Ordering::SeqCst) } else { OTHER }, ..attr }
    }
}

#[async_trait::async_trait]
impl FileSystemDecorator for Two {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.below.getattr(id).await.map(|attr| self.of(attr))
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        self.below.lookup(caller, entry).await.map(|attr| self.of(attr))
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.below.parent(dir).await.map(|attr| self.of(attr))
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let mut page = self.below.readdir(caller, request).await?;
        for entry in &mut page.entries {
            entry.attr = entry.attr.take().map(|attr| self.of(attr));
        }
        Ok(page)
    }
}

impl Kernel {
    /// The numbers in a directory, by their names; with attributes, those must have them, too.
    fn numbers(&mut self, node: u64, plus: bool) -> HashMap<Vec<u8>, u64> {
        let open = abi::OpenIn::default();
        let fh = self.ok::<abi::OpenOut>(opcode::OPENDIR, node, &[open.as_bytes()]).fh;
        let opcode = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
        let args = abi::ReadIn { fh, size: 1 << 20, ..Default::default() };
        let (error, page) = self.call(opcode, node, &[args.as_bytes()]);
        assert_eq!(error, 0);
        let (mut numbers, mut rest) = (HashMap::new(), &page[..]);
        while !rest.is_empty() {
            let head = if plus { size_of::<abi::EntryOut>() } else { 0 };
            let (dirent, after) = abi::Dirent::read_from_prefix(&rest[head..]).unwrap();
            let name = &after[..dirent.namelen as usize];
            if plus && !matches!(name, b"." | b"..") {
                let (entry, _) = abi::EntryOut::read_from_prefix(rest).unwrap();
                assert_eq!(entry.attr.ino, dirent.ino);
            }
            numbers.insert(name.to_vec(), dirent.ino);
            let whole = head + size_of::<abi::Dirent>() + name.len();
            rest = &rest[whole.next_multiple_of(8)..];
        }
        numbers
    }
}

/// Programs tell files by device and inode number, and a mount has one device number: of two files with one inode
/// number they would archive the second one as a link to the first one.
#[test]
fn files_of_other_file_systems_have_other_numbers() {
    let store = MemoryFs::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (set, own) = (SetAttr::default(), Caller::Own);
    let (file, dir, below) = runtime.block_on(async {
        let new = |dir: FileId, name| dir.entry(name).with(&set);
        let root = store.root();
        let must = CreateMode::MustBeNew;
        let file = store.create(&own, new(root, b"file"), must).await.unwrap().attr;
        let dir = store.mkdir(&own, new(root, b"dir")).await.unwrap();
        let below = store.create(&own, new(dir.id, b"below"), must).await.unwrap().attr;
        (file.id.ino, dir.id.ino, below.id.ino)
    });
    assert!(file < dir && dir < below);
    let root = store.root().ino;
    let two = Two::new(store, dir);
    let settings = Settings { root_fsid: Some(ROOTS), ..Settings::default() };
    let mut kernel = Kernel::start_with(two, settings);
    let number = |ino| number_elsewhere(OTHER, ino);

    let found: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"file\0"]);
    assert_eq!(found.attr.ino, file);
    let found: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"dir\0"]);
    assert_eq!(found.attr.ino, number(dir));
    let node = found.nodeid;
    let get = abi::GetattrIn::default();
    let got: abi::AttrOut = kernel.ok(opcode::GETATTR, node, &[get.as_bytes()]);
    assert_eq!(got.attr.ino, number(dir));
    let found: abi::EntryOut = kernel.ok(opcode::LOOKUP, node, &[b"below\0"]);
    assert_eq!(found.attr.ino, number(below));
    for plus in [false, true] {
        let listed = kernel.numbers(node, plus);
        let expected = [(&b"."[..], number(dir)), (b"..", root), (b"below", number(below))];
        let expected = expected.map(|(name, ino)| (name.to_vec(), ino));
        assert_eq!(listed, HashMap::from(expected), "with attributes: {plus}");
    }
    let listed = kernel.numbers(abi::ROOT, true);
    assert_eq!((listed[&b"."[..]], listed[&b"file"[..]]), (root, file));
    assert_eq!(listed[&b"dir"[..]], number(dir));
}

/// After a restart of a server, say.
#[test]
fn files_keep_their_numbers_when_the_file_system_of_the_root_gets_another_one() {
    let store = Two::new(MemoryFs::new(), u64::MAX);
    let root = store.below.root().ino;
    let settings = Settings { root_fsid: Some(ROOTS), ..Settings::default() };
    let mut kernel = Kernel::start_with(store.clone(), settings);
    let mkdir = abi::MkdirIn { mode: 0o755, ..Default::default() };
    let made: abi::EntryOut = kernel.ok(opcode::MKDIR, abi::ROOT, &[mkdir.as_bytes(), b"dir\0"]);
    let look_up = |kernel: &mut Kernel| {
        kernel.ok::<abi::EntryOut>(opcode::LOOKUP, abi::ROOT, &[b"dir\0"]).attr.ino
    };
    let dir = look_up(&mut kernel);
    store.first.store(ROOTS + 1, Ordering::SeqCst);
    let get = abi::GetattrIn::default();
    let got: abi::AttrOut = kernel.ok(opcode::GETATTR, abi::ROOT, &[get.as_bytes()]);
    assert_eq!(got.attr.ino, root);
    let listed = kernel.numbers(made.nodeid, false);
    assert_eq!((listed[&b"."[..]], listed[&b".."[..]]), (dir, root));
    let listed = kernel.numbers(abi::ROOT, true);
    assert_eq!((listed[&b"."[..]], listed[&b"dir"[..]]), (root, dir));
    assert_eq!(look_up(&mut kernel), dir);
}
