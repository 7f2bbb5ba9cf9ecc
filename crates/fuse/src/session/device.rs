//! The device through which the kernel sends requests and gets replies.

use rustix::fs::{Mode, OFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use tracing::debug;
use zerocopy::IntoBytes;

use crate::wire::abi::{self, OutHeader};

/// The kernel's limit on the parts of one write.
const MOST_PARTS: usize = 1024;

/// A connection to the kernel.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens the device; the connection begins when it is mounted.
///
/// # Errors
/// The device is missing, or this user may not open it.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the device exists.
pub(crate) fn exists() -> bool {
    Path::new("/dev/fuse").exists()
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// The next request; waits for it. `None` when the file system is unmounted.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let received = rustix::io::readv(&self.0, &mut [IoSliceMut::new(buffer)]);
            match received {
                // A connection that is not the kernel's (in tests) ends with 0.
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was interrupted before it was read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let mut poll =
                        [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
                    rustix::event::poll(&mut poll, None).ok();
                }
                Err(
                    rustix::io::Errno::NODEV
                    | rustix::io::Errno::NOTCONN
                    | rustix::io::Errno::CONNABORTED,
                ) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the kernel ask for a node's attributes again.
    pub(crate) fn drop_attributes(&self, node: u64) {
        self.invalidate(abi::InvalInodeOut { ino: node, off: -1, len: 0 });
    }

    /// Makes the kernel drop its pages of a range of a node (`bytes` 0: up to the end), and its attributes. Waits for
    /// pages that are being read, so the requests of this node have to be answered by other threads meanwhile.
    pub(crate) fn drop_pages(&self, node: u64, start: u64, bytes: u64) {
        let (off, len) = (start.min(i64::MAX as u64) as i64, bytes.min(i64::MAX as u64) as i64);
        self.invalidate(abi::InvalInodeOut { ino: node, off, len });
    }

    fn invalidate(&self, out: abi::InvalInodeOut) {
        // The kernel may have forgotten the node, and its pages with it.
        let _ = self.send(0, abi::NOTIFY_INVAL_INODE, &[IoSlice::new(out.as_bytes())]);
    }

    /// Sends a reply. In place of one that the kernel does not take (for lack of memory, say) it gets an I/O error, or
    /// else a thread would wait for ever.
    ///
    /// # Errors
    /// As [`send`](Self::send): nothing was handed over.
    pub(crate) fn reply(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let sent = self.send(unique, error, parts);
        if let Err(failed) = &sent {
            debug!("the kernel does not take the reply to request {unique}: {failed}");
            if failed.raw_os_error() != Some(libc::ENOENT) {
                let _ = self.send(unique, -libc::EIO, &[]);
            }
        }
        sent
    }

    /// Sends a reply or notification: `error` is a negative error number, or a notification's code
    /// if `unique` is 0. The kernel takes it whole or not at all.
    ///
    /// # Errors
    /// ENOENT: the kernel does not wait for this reply any more.
    pub(crate) fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique };
        if parts.len() < MOST_PARTS {
            let mut all = Vec::with_capacity(parts.len() + 1);
            all.push(IoSlice::new(header.as_bytes()));
            all.extend_from_slice(parts);
            rustix::io::writev(&self.0, &all)?;
        } else {
            let mut joined = Vec::with_capacity(len);
            joined.extend_from_slice(header.as_bytes());
            parts.iter().for_each(|part| joined.extend_from_slice(part));
            rustix::io::write(&self.0, &joined)?;
        }
        Ok(())
    }
}
