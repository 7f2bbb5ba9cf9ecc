//! Listings of directories.

use super::Kernel;
use crate::wire::abi::{self, opcode};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::Error;
use zerocopy::{FromBytes, IntoBytes};

impl Kernel {
    /// One page of a listing with attributes, and the position after it.
    fn read_plus(
        &mut self,
        fh: u64,
        offset: u64,
        size: u32,
    ) -> (Vec<(Vec<u8>, abi::EntryOut)>, u64) {
        let args = abi::ReadIn { fh, offset, size, ..Default::default() };
        let (error, page) = self.call(opcode::READDIRPLUS, abi::ROOT, &[args.as_bytes()]);
        assert_eq!(error, 0);
        let (mut entries, mut offset, mut rest) = (Vec::new(), offset, &page[..]);
        while !rest.is_empty() {
            let (entry, after) = abi::EntryOut::read_from_prefix(rest).unwrap();
            let (dirent, after) = abi::Dirent::read_from_prefix(after).unwrap();
            let name = &after[..dirent.namelen as usize];
            entries.push((name.to_vec(), entry));
            offset = dirent.off;
            let whole = size_of::<abi::EntryOut>() + size_of::<abi::Dirent>() + name.len();
            rest = &rest[whole.next_multiple_of(8)..];
        }
        (entries, offset)
    }
}

#[test]
fn listings_of_any_reply_size_have_every_name_once() {
    let mut kernel = Kernel::start();
    let mut made: Vec<Vec<u8>> = (0..300).map(|n| format!("name-{n:03}").into_bytes()).collect();
    made.push(vec![b'x'; 255]);
    for name in &made {
        kernel.create(name);
    }
    made.extend([b".".to_vec(), b"..".to_vec()]);
    made.sort();
    for plus in [false, true] {
        let opcode = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
        let head = if plus { size_of::<abi::EntryOut>() } else { 0 };
        for size in [448, 4096, 1 << 20] {
            let open = abi::OpenIn::default();
            let fh = kernel.ok::<abi::OpenOut>(opcode::OPENDIR, abi::ROOT, &[open.as_bytes()]).fh;
            let (mut names, mut offset) = (Vec::new(), 0);
            loop {
                let args = abi::ReadIn { fh, offset, size, ..Default::default() };
                let (error, page) = kernel.call(opcode, abi::ROOT, &[args.as_bytes()]);
                assert_eq!(error, 0);
                assert!(page.len() <= size as usize);
                if page.is_empty() {
                    break;
                }
                let mut rest = &page[..];
                while !rest.is_empty() {
                    let (entry, after) = abi::Dirent::read_from_prefix(&rest[head..]).unwrap();
                    let name = &after[..entry.namelen as usize];
                    names.push(name.to_vec());
                    offset = entry.off;
                    let whole = head + size_of::<abi::Dirent>() + name.len();
                    rest = &rest[whole.next_multiple_of(8)..];
                }
            }
            names.sort();
            assert_eq!(names, made, "replies of {size} bytes");
        }
    }
}

#[test]
fn a_listing_that_fails_midway_gives_what_was_read() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    for number in 0..1100 {
        kernel.create(format!("name-{number:03x}").as_bytes());
    }
    let open = abi::OpenIn::default();
    let fh = kernel.ok::<abi::OpenOut>(opcode::OPENDIR, abi::ROOT, &[open.as_bytes()]).fh;
    // A reply of this size takes two requests to the store.
    let args = abi::ReadIn { fh, size: 1 << 20, ..Default::default() };
    store.add(Rule { call: Call::Readdir, when: When::Nth(1), what: What::Fail(Error::Io) });
    let (error, page) = kernel.call(opcode::READDIRPLUS, abi::ROOT, &[args.as_bytes()]);
    assert_eq!((error, store.injected()), (0, 1));
    // Of all of them, the kernel has got the uses of the nodes.
    const ENTRY: usize = size_of::<abi::EntryOut>() + size_of::<abi::Dirent>() + 8;
    assert!(page.len() > 16 * ENTRY && page.len().is_multiple_of(ENTRY), "{}", page.len());
    let last = &page[page.len() - ENTRY + size_of::<abi::EntryOut>()..];
    let offset = abi::Dirent::read_from_prefix(last).unwrap().0.off;
    let args = abi::ReadIn { offset, ..args };
    let (error, rest) = kernel.call(opcode::READDIRPLUS, abi::ROOT, &[args.as_bytes()]);
    assert_eq!((error, (page.len() + rest.len()) / ENTRY), (0, 1102));
}

/// The kernel takes what it gets for newer than what it learned before it asked.
#[test]
fn a_listing_has_no_attributes_from_before_its_request() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let names: Vec<_> = (0..40).map(|number| format!("name-{number:03}")).collect();
    let made: Vec<_> = names.iter().map(|name| kernel.create(name.as_bytes())).collect();
    let open = abi::OpenIn::default();
    let fh = kernel.ok::<abi::OpenOut>(opcode::OPENDIR, abi::ROOT, &[open.as_bytes()]).fh;
    let (first, mut offset) = kernel.read_plus(fh, 0, 1024);
    let is_listed = |name: &String| first.iter().any(|(listed, _)| listed == name.as_bytes());
    let later: Vec<_> = (0..40).filter(|&number| !is_listed(&names[number])).collect();
    let (written, replaced, replacing) = (later[0], later[1], later[2]);
    kernel.write(made[written].0, made[written].1, 0, &[1; 10]);
    let args = abi::RenameIn { newdir: abi::ROOT };
    let (from, to) = (names[replacing].as_bytes(), names[replaced].as_bytes());
    let content = [args.as_bytes(), from, b"\0", to, b"\0"];
    assert_eq!(kernel.call(opcode::RENAME, abi::ROOT, &content).0, 0);

    let (mut rest, mut replies) = (Vec::new(), 0);
    loop {
        // The store is asked once for each reply, also for one of small entries.
        store.clear();
        store.add(Rule { call: Call::Readdir, when: When::Nth(1), what: What::Fail(Error::Io) });
        let (page, next) = kernel.read_plus(fh, offset, 1024);
        if page.is_empty() {
            break;
        }
        (offset, replies) = (next, replies + 1);
        rest.extend(page);
    }
    assert_eq!((store.injected(), replies), (0, 6), "{} entries", rest.len());
    let found = |number: usize| rest.iter().find(|(name, _)| name == names[number].as_bytes());
    let entry = found(written).unwrap().1;
    assert_eq!((entry.nodeid, entry.attr.size), (made[written].0, 10));
    assert_eq!(found(replaced).unwrap().1.nodeid, made[replacing].0);
    assert!(found(replacing).is_none());
    assert!(rest.iter().all(|(_, entry)| entry.nodeid != made[replaced].0));
}
