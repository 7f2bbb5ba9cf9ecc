//! A process that lets go of the mounts of another one that was killed.
//!
//! ```text
//!   serves mounts                                      guards them
//!   Guarded::pair ------------ inherits -------------> Guardian::inherited
//!   Guarded::add: a second connection to a mount ----> Guardian::wait
//!   Guarded::dismiss, or is killed ------------------> Guardian::wait returns
//!                                                      Orphans::release
//! ```
//!
//! 1. A killed process ends when the last of its threads has, and the kernel ends a connection when no process has it.
//!    A thread that notifies the kernel (`session::notifier`) may wait for a READ that nothing has received: then only
//!    an answer to that READ ends the thread, and the guard gives it.
//! 2. The guard receives nothing as long as the other process serves. It uses no file of a mount.
//! 3. The guard outlives the other process: it ends when that has dismissed it, or has ended and its mounts are
//!    detached. Signals that ask to stop do not end it.
//! 4. Messages go one way, so that none that was not read turns the end of the other process into an error.

use crate::mountpoint::{Mountpoint, received};
use crate::namespace::{inherited, pair};
use crate::session::device::Device;
use crate::session::{MOST_REQUEST_BYTES, notifier};
use crate::wire::abi::{InHeader, opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Longest message: a number and a path.
const MESSAGE_BYTES: usize = 8192;
/// Messages: a mount; the guard is not needed any more.
const MOUNT: u8 = b'+';
const DISMISSED: u8 = b'.';
/// Time between two looks whether the killed process has ended.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The end of the process that serves mounts.
#[derive(Debug)]
pub struct Guarded(OwnedFd);

/// The end of the guard.
#[derive(Debug)]
pub struct Guardian(OwnedFd);

/// Mounts whose process was killed.
#[derive(Debug, Default)]
pub struct Orphans {
    connections: Vec<Device>,
    mountpoints: Vec<Mountpoint>,
}

impl Guarded {
    /// Both ends; the second one is inherited by child processes.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn pair() -> io::Result<(Self, Guardian)> {
        pair().map(|(ours, theirs)| (Self(ours), Guardian(theirs)))
    }

    /// Has a mount guarded: its `connection`, and the place from which it is to be detached.
    ///
    /// # Errors
    /// The guard has ended; or there is nothing that it could do, because this process may not open the device.
    pub fn add(&self, connection: impl AsFd, mountpoint: Option<&Mountpoint>) -> io::Result<()> {
        let mut bytes = vec![MOUNT];
        if let Some(mountpoint) = mountpoint {
            bytes.extend_from_slice(format!("{}:", mountpoint.id()).as_bytes());
            bytes.extend_from_slice(mountpoint.path().as_os_str().as_bytes());
        }
        let second = notifier::clone_of(connection.as_fd()).and_then(|second| {
            // Another process may be quicker to receive.
            rustix::fs::fcntl_setfl(&second, OFlags::NONBLOCK)?;
            Ok(second)
        });
        match second {
            Ok(second) => self.send(&bytes, Some(&second)),
            Err(error) if mountpoint.is_none() => Err(error),
            Err(_) => self.send(&bytes, None),
        }
    }

    /// Ends the guard.
    ///
    /// # Errors
    /// It has ended already.
    pub fn dismiss(self) -> io::Result<()> {
        self.send(&[DISMISSED], None)
    }

    fn send(&self, bytes: &[u8], connection: Option<&OwnedFd>) -> io::Result<()> {
        let descriptors: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Guardian {
    /// The number that a child process knows this end by.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The end that the parent process left open under this number.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn inherited(number: RawFd) -> io::Result<Self> {
        inherited(number).map(Self)
    }

    /// Waits for the end of the other process. `None`: it has dismissed the guard.
    pub fn wait(self) -> Option<Orphans> {
        let mut orphans = Orphans::default();
        let mut bytes = vec![0; MESSAGE_BYTES];
        loop {
            let (len, connection) = match received(&self.0, &mut bytes) {
                Ok(message) => message,
                Err(error) if is_short_of_memory(&error) => {
                    // No reason to end a mount that works.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
                // Other errors mean the same as the end.
                Err(_) => (0, None),
            };
            match bytes[..len].split_first() {
                Some((&MOUNT, at)) => {
                    orphans.connections.extend(connection.map(Device::new));
                    orphans.mountpoints.extend(mountpoint(at));
                }
                Some(_) => return None,
                None => return Some(orphans),
            }
        }
    }
}

fn is_short_of_memory(error: &io::Error) -> bool {
    let short = [Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| short.contains(&errno))
}

/// The mount of a message: NUMBER:PATH.
fn mountpoint(bytes: &[u8]) -> Option<Mountpoint> {
    let colon = bytes.iter().position(|&byte| byte == b':')?;
    let id = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    let path = PathBuf::from(OsString::from_vec(bytes[colon + 1..].to_vec()));
    Some(Mountpoint::of(path, id))
}

impl Orphans {
    /// Ends the connections, and detaches the mounts. `has_ended` says whether nothing is left of the killed process.
    ///
    /// # Errors
    /// As [`Mountpoint::detach`], for one of them.
    pub fn release(mut self, has_ended: impl Fn() -> bool) -> io::Result<()> {
        // The short way, where this user may take it.
        self.mountpoints.iter().for_each(Mountpoint::abort);
        self.fail_requests(has_ended);
        // The last descriptors of the connections.
        self.connections.clear();
        self.mountpoints.iter().map(Mountpoint::detach).fold(Ok(()), io::Result::and)
    }

    /// Answers each request with an error, until nothing is left of the killed process or of the connections.
    fn fail_requests(&mut self, has_ended: impl Fn() -> bool) {
        let mut buffer = vec![0; MOST_REQUEST_BYTES];
        while !has_ended() && !self.connections.is_empty() {
            let polled = |connection| PollFd::new(connection, PollFlags::IN);
            let mut polled: Vec<_> = self.connections.iter().map(polled).collect();
            if poll(&mut polled, Some(&PAUSE)).is_err() {
                continue;
            }
            let ready: Vec<_> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            self.connections
                .retain(|device| ready.next() != Some(true) || fail_one(device, &mut buffer));
        }
    }
}

/// Answers the next request with an error. Returns whether the connection is still there.
fn fail_one(device: &Device, buffer: &mut [u8]) -> bool {
    use zerocopy::FromBytes;
    let len = match rustix::io::read(device, &mut *buffer) {
        Ok(0) => return false,
        Ok(len) => len,
        // ENOENT: the request was interrupted before it was read.
        Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => return true,
        Err(_) => return false,
    };
    let Ok((header, _)) = InHeader::read_from_prefix(&buffer[..len]) else { return true };
    let has_reply =
        ![opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT].contains(&header.opcode);
    if has_reply {
        // The kernel may not wait for it any more.
        let _ = device.send(header.unique, -libc::ENOTCONN, &[]);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::abi::OutHeader;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, send, socketpair};
    use std::cell::Cell;
    use std::path::Path;
    use zerocopy::{FromBytes, IntoBytes};

    /// The kernel's side of a connection, and the other one.
    fn connection() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_guard_learns_of_mounts_until_the_other_process_ends() {
        for dismissed in [true, false] {
            let (guarded, guardian) = Guarded::pair().unwrap();
            let (_, device) = connection();
            // No device: this one cannot be cloned.
            guarded.add(&device, Some(&Mountpoint::of("/mnt/a:b".into(), 40))).unwrap();
            if dismissed {
                guarded.dismiss().unwrap();
                assert!(guardian.wait().is_none());
                continue;
            }
            guarded.send(&[MOUNT], Some(&device)).unwrap();
            drop(guarded);
            let orphans = guardian.wait().unwrap();
            assert_eq!(orphans.connections.len(), 1);
            let [mountpoint] = &orphans.mountpoints[..] else { panic!("{orphans:?}") };
            assert_eq!((mountpoint.path(), mountpoint.id()), (Path::new("/mnt/a:b"), 40));
        }
    }

    /// A thread of the killed process may wait for one of them.
    #[test]
    fn requests_that_a_killed_process_has_not_received_fail() {
        let (kernel, device) = connection();
        let ask = |opcode, unique| {
            let header = InHeader { len: 40, opcode, unique, ..InHeader::default() };
            send(&kernel, header.as_bytes(), SendFlags::empty()).unwrap();
        };
        ask(opcode::READ, 2);
        ask(opcode::FORGET, 4);
        ask(opcode::LOOKUP, 6);
        let orphans = Orphans { connections: vec![Device::new(device)], mountpoints: Vec::new() };
        // The thread goes on when it has the answers.
        let looks = Cell::new(0);
        let has_ended = || {
            looks.set(looks.get() + 1);
            looks.get() > 3
        };
        orphans.release(has_ended).unwrap();
        for unique in [2, 6] {
            let mut bytes = [0; 100];
            let (len, _) = recv(&kernel, &mut bytes[..], RecvFlags::empty()).unwrap();
            let out = OutHeader::read_from_bytes(&bytes[..len]).unwrap();
            assert_eq!((out.unique, out.error), (unique, -libc::ENOTCONN));
        }
        let (len, _) = recv(&kernel, &mut [0; 100][..], RecvFlags::empty()).unwrap();
        assert_eq!(len, 0, "the connection has ended");
    }

    #[test]
    fn a_connection_that_the_kernel_has_ended_is_left() {
        let (kernel, device) = connection();
        drop(kernel);
        let orphans = Orphans { connections: vec![Device::new(device)], mountpoints: Vec::new() };
        orphans.release(|| false).unwrap();
    }
}
