//! Files that programs may have mapped: what they stored there is in the kernel.

use super::Kernel;
use crate::wire::abi::{self, opcode};
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
        let args = abi::LseekIn { fh, whence: whence.cast_unsigned(), ..Default::default() };
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
