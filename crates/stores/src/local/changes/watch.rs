//! The kernel's reports of changes to open files by other programs (fanotify(7); needs no privilege
//! for readable files since Linux 5.13).
//!
//! 1. A file is marked from before the first look at it until its last open file is closed. Each
//!    report names the process that wrote; our own are ignored.
//! 2. The kernel queues a report when the data is in place, and before the writer continues: a
//!    reader that then finds no report here has read no stale data.
//! 3. The thread that looks at a file reads the reports ([`Watch::drain`]); an overflow of the
//!    kernel's queue (16,384) counts as a change of every marked file.
//! 4. Stores through memory maps are not reported, nor are changes by other machines on network
//!    file systems: these are detected by the time stamp only.
//!
//! Sound because the kernel is handed only pointers to live memory of the length that it is told,
//! and what it wrote is read by copies within the length that it returned.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

const MAX_HANDLE_BYTES: usize = 128;
/// name_to_handle_at(2): for identification only (Linux 6.5).
const AT_HANDLE_FID: i32 = 0x200;
/// The mark does not keep the inode in memory (Linux 5.19).
const FAN_MARK_EVICTABLE: u32 = 0x200;
/// Kind, length, and file system id before a file handle (`fanotify_event_info_fid`).
const INFO_HEADER_BYTES: usize = 12;

/// The count of changes by others, shared by a file and this watch.
pub(in crate::local) type Count = AtomicU64;

/// The kernel's name for a file: kind and bytes of its file handle.
type Key = Box<[u8]>;

/// A queue of reports.
#[derive(Debug)]
pub(in crate::local) struct Watch {
    queue: OwnedFd,
    process: i32,
    marked: Mutex<HashMap<Key, Weak<Count>>>,
}

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE_BYTES],
}

impl Watch {
    /// A queue, if the kernel offers one.
    pub(in crate::local) fn new() -> Option<Self> {
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_NONBLOCK | libc::FAN_CLOEXEC;
        // SAFETY: takes numbers only.
        let queue = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
        if queue < 0 {
            return None;
        }
        // SAFETY: a new descriptor, which has no other owner.
        let queue = unsafe { OwnedFd::from_raw_fd(queue) };
        let process = std::process::id().cast_signed();
        Some(Self { queue, process, marked: Mutex::default() })
    }

    /// Makes the kernel report changes of an open file to `count` from now on; returns its name for
    /// it.
    pub(in crate::local) fn mark(&self, file: BorrowedFd<'_>, count: Weak<Count>) -> Option<Key> {
        let key = key_of(file)?;
        // First, so that an immediate report finds it.
        self.marked.lock().insert(key.clone(), count);
        let evictable = self.change_mark(file, libc::FAN_MARK_ADD | FAN_MARK_EVICTABLE);
        // Kernels before 5.19 do not know the flag.
        if evictable.or_else(|_| self.change_mark(file, libc::FAN_MARK_ADD)).is_ok() {
            return Some(key);
        }
        self.marked.lock().remove(&key);
        None
    }

    /// Removes the mark.
    pub(in crate::local) fn unmark(&self, file: BorrowedFd<'_>, key: &[u8]) {
        // If this fails, the kernel drops the mark with the inode.
        let _ = self.change_mark(file, libc::FAN_MARK_REMOVE);
        self.marked.lock().remove(key);
    }

    fn change_mark(&self, file: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
        // SAFETY: without a path the call concerns the open file.
        let changed = unsafe {
            libc::fanotify_mark(
                self.queue.as_raw_fd(),
                flags,
                libc::FAN_MODIFY,
                file.as_raw_fd(),
                std::ptr::null(),
            )
        };
        if changed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Counts the changes reported so far.
    pub(in crate::local) fn drain(&self) {
        let mut buffer = [0u8; 4096];
        // Held over the reads: once the queue is empty, everything has to be counted.
        let marked = self.marked.lock();
        // If the queue fills faster than it is read, the next look continues.
        for _ in 0..64 {
            match rustix::io::read(self.queue.as_fd(), &mut buffer) {
                Ok(len) if len > 0 => self.count(&buffer[..len], &marked),
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }

    fn count(&self, mut reports: &[u8], marked: &HashMap<Key, Weak<Count>>) {
        type Header = libc::fanotify_event_metadata;
        let add = |count: &Weak<Count>| {
            if let Some(count) = count.upgrade() {
                count.fetch_add(1, Ordering::AcqRel);
            }
        };
        while let (Some(len), Some(header), Some(mask), Some(process)) = (
            word(reports, offset_of!(Header, event_len)),
            reports.get(offset_of!(Header, metadata_len)..),
            reports.get(offset_of!(Header, mask)..).and_then(|b| b.first_chunk::<8>()),
            word(reports, offset_of!(Header, pid)),
        ) {
            let header = header.first_chunk::<2>().map_or(0, |b| u16::from_ne_bytes(*b)) as usize;
            let Some(report) = reports.get(..len as usize).filter(|r| !r.is_empty()) else {
                return;
            };
            reports = &reports[len as usize..];
            if u64::from_ne_bytes(*mask) & libc::FAN_Q_OVERFLOW != 0 {
                marked.values().for_each(add);
            } else if process.cast_signed() != self.process
                && let Some(key) = report.get(header..).and_then(reported_key)
                && let Some(count) = marked.get(key)
            {
                add(count);
            }
        }
    }
}

/// The file handle in a report, kind and bytes.
fn reported_key(info: &[u8]) -> Option<&[u8]> {
    let handle = info.get(INFO_HEADER_BYTES..)?;
    let bytes = word(handle, 0)? as usize;
    handle.get(size_of::<u32>()..2 * size_of::<u32>() + bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The kernel's name for an open file in its reports.
fn key_of(file: BorrowedFd<'_>) -> Option<Key> {
    [AT_HANDLE_FID, 0].into_iter().find_map(|flag| {
        let mut handle =
            FileHandle { bytes: MAX_HANDLE_BYTES as u32, kind: 0, handle: [0; MAX_HANDLE_BYTES] };
        let mut mount = 0i32;
        // SAFETY: `handle` has room for as many bytes as it says; the path is a constant C string.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH | flag,
            )
        };
        if result < 0 {
            return None;
        }
        let bytes = handle.handle.get(..handle.bytes as usize)?;
        Some([&handle.kind.to_ne_bytes()[..], bytes].concat().into())
    })
}
