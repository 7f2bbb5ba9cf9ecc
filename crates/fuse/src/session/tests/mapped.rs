//! Files that programs may have mapped: what they stored there is in the kernel.

use super::Kernel;
use crate::session::MOST_REQUESTS;
use crate::wire::abi::{self, opcode};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

impl Kernel {
    fn set_size(&mut self, node: u64, size: u64) -> u64 {
        let args = abi::SetattrIn { valid: abi::Fattr::SIZE.bits(), size, ..Default::default() };
        self.ok::<abi::AttrOut>(opcode::SETATTR, node, &[args.as_bytes()]).attr.blocks
    }

    fn blocks(&mut self, node: u64) -> u64 {
        let args = abi::GetattrIn::default();
        self.ok::<abi::AttrOut>(opcode::GETATTR, node, &[args.as_bytes()]).attr.blocks
    }

    fn seek(&mut self, node: u64, fh: u64, whence: i32) -> u64 {
        self.seek_from(node, fh, whence, 0)
    }

    fn seek_from(&mut self, node: u64, fh: u64, whence: i32, offset: u64) -> u64 {
        let whence = whence.cast_unsigned();
        let args = abi::LseekIn { fh, offset, whence, ..Default::default() };
        self.ask(opcode::LSEEK, node, &[args.as_bytes()])
    }

    fn close(&mut self, node: u64, fh: u64) {
        let args = abi::ReleaseIn { fh, ..Default::default() };
        assert_eq!(self.call(opcode::RELEASE, node, &[args.as_bytes()]).0, 0);
    }
}

/// Unlike for read(2), the kernel does not write out mapped pages before it asks for data or a hole.
#[test]
fn a_hole_is_looked_for_after_the_kernel_has_written_out_what_was_stored_through_mappings() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    kernel.set_size(node, 1 << 20);
    let (reader, _) = kernel.open_to_read(node);
    let asked = kernel.seek(node, reader, libc::SEEK_HOLE);
    let (unique, code, content) = kernel.receive();
    assert_eq!((unique, code), (0, abi::NOTIFY_INVAL_INODE), "a program may have mapped it");
    let dropped = abi::InvalInodeOut::read_from_bytes(&content).unwrap();
    assert_eq!((dropped.ino, dropped.off, dropped.len), (node, 0, 0));
    let (error, found) = kernel.reply(asked);
    let found = abi::LseekOut::read_from_bytes(&found);
    assert_eq!((error, found.unwrap().offset), (0, 0));
    // No other program has it open for reading and writing any more.
    kernel.close(node, fh);
    let asked = kernel.seek(node, reader, libc::SEEK_DATA);
    let (unique, error, _) = kernel.receive();
    assert_eq!((unique, error), (asked, -libc::ENXIO));
}

/// Programs that look for the next hole again and again (qemu, of the image that it has open) would read all anew.
#[test]
fn a_search_has_the_kernel_drop_only_its_pages_from_the_first_hole_on() {
    const DATA: u64 = 512 << 10;
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    for at in (0..DATA).step_by(128 << 10) {
        kernel.write(node, fh, at, &[1; 128 << 10]);
    }
    kernel.set_size(node, 2 * DATA);
    let cases = [
        (libc::SEEK_DATA, 0, None, 0),
        (libc::SEEK_DATA, DATA - 1, None, DATA - 1),
        (libc::SEEK_HOLE, 0, Some(DATA), DATA),
        (libc::SEEK_HOLE, 600_000, Some(598_016), 600_000),
    ];
    for (whence, offset, dropped_from, expected) in cases {
        let asked = kernel.seek_from(node, fh, whence, offset);
        if let Some(from) = dropped_from {
            let (unique, code, content) = kernel.receive();
            assert_eq!((unique, code), (0, abi::NOTIFY_INVAL_INODE));
            let dropped = abi::InvalInodeOut::read_from_bytes(&content).unwrap();
            assert_eq!((dropped.ino, dropped.off, dropped.len), (node, from.cast_signed(), 0));
        }
        let (unique, error, found) = kernel.receive();
        assert_eq!((unique, error), (asked, 0));
        assert_eq!(abi::LseekOut::read_from_bytes(&found).unwrap().offset, expected);
    }
}

/// Before the kernel drops pages, it sends what was stored through mappings, by a WRITE.
#[test]
fn searches_that_wait_for_the_kernel_leave_room_for_its_writes() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    kernel.set_size(node, 1 << 20);
    let mounted = Arc::clone(&kernel.session.as_ref().unwrap().mounted);
    mounted.hold_drops(true);
    let asked: Vec<_> =
        (0..MOST_REQUESTS).map(|_| kernel.seek(node, fh, libc::SEEK_DATA)).collect();
    let args = abi::WriteIn { fh, offset: 1 << 19, size: 4, ..Default::default() };
    let write = kernel.ask(opcode::WRITE, node, &[args.as_bytes(), b"data"]);
    let (mut answered, mut is_written) = (0, false);
    while answered < MOST_REQUESTS / 2 || !is_written {
        let (unique, error, content) = kernel.receive();
        assert_eq!(error, 0);
        if unique == write {
            is_written = true;
        } else {
            assert!(asked.contains(&unique));
            // The rest is taken for data.
            assert_eq!(abi::LseekOut::read_from_bytes(&content).unwrap().offset, 0);
            answered += 1;
        }
    }
    let hole = kernel.seek(node, fh, libc::SEEK_HOLE);
    let (unique, error, content) = kernel.receive();
    assert_eq!((unique, error), (hole, 0));
    assert_eq!(abi::LseekOut::read_from_bytes(&content).unwrap().offset, 1 << 20);
    let end = kernel.seek_from(node, fh, libc::SEEK_DATA, 1 << 20);
    let (unique, error, _) = kernel.receive();
    assert_eq!((unique, error), (end, -libc::ENXIO));
    mounted.hold_drops(false);
    while answered < MOST_REQUESTS {
        let (unique, code, content) = kernel.receive();
        if unique != 0 {
            assert_eq!(code, 0);
            assert_eq!(abi::LseekOut::read_from_bytes(&content).unwrap().offset, 1 << 19);
            answered += 1;
        }
    }
}

/// GNU tar does not look for the data of a file without space.
#[test]
fn a_file_that_may_be_mapped_has_space() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    assert_eq!(kernel.blocks(node), 0);
    assert_eq!((kernel.set_size(node, 1 << 20), kernel.blocks(node)), (8, 8));
    let entry: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    assert_eq!(entry.attr.blocks, 8);
    kernel.close(node, fh);
    assert_eq!(kernel.blocks(node), 0);
    // The kernel asks again for the attributes that it has from before the open.
    let args = abi::OpenIn { flags: libc::O_RDWR.cast_unsigned(), ..Default::default() };
    kernel.ask(opcode::OPEN, node, &[args.as_bytes()]);
    let (unique, code, _) = kernel.receive();
    assert_eq!((unique, code), (0, abi::NOTIFY_INVAL_INODE));
}
