//! A private view of the machine's files for one program: a mount namespace in which connections are
//! mounted over directories that this process serves from outside.
//!
//! ```text
//!   outside (serves)                                 inside (becomes the program)
//!                                                    enter: namespace, mounts of its own
//!        <------- connection for a directory -------  over: mount a connection on it
//!        -------- served ------------------------->
//!                        ... each directory ...
//!                                                    exec
//! ```
//!
//! 1. The process inside has one thread when it enters: a namespace of users, and of mounts, belongs to
//!    all threads.
//! 2. Without root, a namespace of users gives the right to mount. It maps this user and group alone, to
//!    themselves: files of others are seen as those of the overflow user, and cannot be written.
//! 3. A connection refuses what the file system below it refuses: set-user-id programs, devices, programs, changes.
//!
//! Soundness: the descriptor in `inherited` is one that the parent left open for this process and that
//! nothing else here uses, as its callers make sure; `unshare` affects no memory, and no other thread exists (1).
#![allow(unsafe_code, reason = "an inherited descriptor, and namespaces")]

use crate::mountpoint::{MountOptions, mount_directly, received};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Longest message: a path or an error.
const MESSAGE_BYTES: usize = 8192;

/// The descriptor that the parent process left open under this number, which nothing in this process
/// uses. Child processes do not inherit it.
///
/// # Errors
/// There is no such descriptor.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: see the header; `fcntl` fails for a number that is not open.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    match rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
        Ok(()) => Ok(fd),
        Err(error) => {
            // It is not open, so it is not to be closed.
            std::mem::forget(fd);
            Err(error.into())
        }
    }
}

/// Two ends of a connection for messages; child processes inherit the second one.
///
/// # Errors
/// There are no more descriptors.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    Ok((ours, theirs))
}

/// One end of the connection between the process inside and the one outside.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// Both ends; the second one is inherited by child processes.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        pair().map(|(ours, theirs)| (Self(ours), Self(theirs)))
    }

    /// The number that a child process knows this end by.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The end that the parent process left open under this number. The program that this process
    /// becomes does not inherit it.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn inherited(number: RawFd) -> io::Result<Self> {
        inherited(number).map(Self)
    }

    /// The next directory to serve: its path, and the connection that is mounted on it. `None` when the
    /// program runs. Waits.
    ///
    /// # Errors
    /// The process inside failed; it has said why.
    pub fn next(&self) -> io::Result<Option<(PathBuf, OwnedFd)>> {
        let mut bytes = vec![0; MESSAGE_BYTES];
        let (len, connection) = received(&self.0, &mut bytes)?;
        bytes.truncate(len);
        match connection {
            _ if len == 0 => Ok(None),
            Some(connection) => Ok(Some((PathBuf::from(OsString::from_vec(bytes)), connection))),
            None => Err(io::Error::other(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// Tells the process inside that the directory is served, or why not.
    ///
    /// # Errors
    /// It has ended.
    pub fn served(&self, outcome: Result<(), String>) -> io::Result<()> {
        let said = outcome.err().unwrap_or_default();
        let said = [b"=", said.as_bytes()].concat();
        rustix::net::send(&self.0, &said[..said.len().min(MESSAGE_BYTES)], SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Tells the process outside why the program does not run.
    ///
    /// # Errors
    /// It has ended.
    pub fn refused(&self, why: &str) -> io::Result<()> {
        let why = if why.is_empty() { "unknown" } else { why };
        let bytes = &why.as_bytes()[..why.len().min(MESSAGE_BYTES)];
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Hands over the connection of a directory to be served, or another descriptor that is known by `path`, and
    /// waits until it is in use.
    ///
    /// # Errors
    /// The process outside has ended, or says why it cannot use it.
    pub fn serve(&self, path: &Path, connection: &OwnedFd) -> io::Result<()> {
        let descriptors = [connection.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let path = path.as_os_str().as_bytes();
        sendmsg(&self.0, &[IoSlice::new(path)], &mut ancillary, SendFlags::NOSIGNAL)?;
        let mut bytes = vec![0; MESSAGE_BYTES];
        let (len, _) = received(&self.0, &mut bytes)?;
        match &bytes[..len] {
            [b'='] => Ok(()),
            [b'=', said @ ..] => Err(io::Error::other(String::from_utf8_lossy(said).into_owned())),
            _ => Err(io::Error::other("the process that serves the files has ended")),
        }
    }
}

/// Gives this process a mount namespace of its own; without root, by a namespace of users.
///
/// # Errors
/// The kernel, or the container that this process runs in, refuses.
fn enter() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: this process has one thread, and mount and user namespaces affect no memory.
    let entered = |flags| unsafe { unshare_unsafe(flags) };
    if entered(UnshareFlags::NEWNS).is_err() {
        entered(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted from here on is seen in this namespace alone. What is unmounted outside of it is unmounted here,
    // too: otherwise, the file system would stay in use, perhaps with data that is not written. On the way, all mounts
    // become shared, since that alone makes unbindable ones bindable (before Linux 6.17).
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::SHARED)?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?)
}

/// Mounts a connection on `at`, over what `path` names, with these flags, and waits until it is served.
fn over(peer: &Peer, path: &Path, at: &Path, flags: MountFlags) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let options = MountOptions {
        source: path.display().to_string(),
        // As root, the program may act as other users; then the kernel checks their rights.
        allow_other: is_root,
        trusted: is_root,
        ..MountOptions::default()
    };
    let connection = mount_directly(at, &options, flags)?;
    peer.serve(path, &connection).inspect_err(|_| {
        // No process serves it.
        let _ = unmount(at, UnmountFlags::DETACH);
    })
}

/// Mounts connections over `paths`, in a namespace of this process, and again what is mounted below them, each of which
/// takes a descriptor meanwhile.
///
/// # Errors
/// The kernel, or the container that this process runs in, refuses a namespace; or a path cannot be served.
pub fn cover(peer: &Peer, paths: &[PathBuf]) -> io::Result<()> {
    let here = std::env::current_dir()?;
    enter()?;
    // All of them before the first one is covered: it would hide the file systems below it.
    let mut places = BTreeMap::new();
    for mounted in mounts() {
        if !paths.iter().any(|path| mounted.path.starts_with(path)) {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&mounted.path, flags, Mode::empty()) {
            Ok(root) => {
                places.insert(mounted.path.clone(), Place::Below(mounted, root));
            }
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(naming(&mounted.path, &error.into()));
            }
            // It is hidden or broken, or its server does not answer: this user does not reach it, either.
            Err(_) => {}
        }
    }
    places.extend(paths.iter().map(|path| (path.clone(), Place::Asked(refusals_at(path)))));
    // What is above comes first. Whether each came with what is mounted below it.
    let mut done: Vec<(&Path, bool)> = Vec::new();
    for (path, place) in &places {
        let above = done.iter().rfind(|(above, _)| path.starts_with(above));
        let is_there = above.is_some_and(|(_, is_whole)| *is_whole);
        let is_whole = match place {
            Place::Asked(flags) => {
                let flags = flags.as_ref().map_err(|error| naming(path, error))?;
                over(peer, path, path, *flags).map_err(|error| naming(path, &error))?;
                false
            }
            // A mount may hide the directory that this one is on.
            Place::Below(..) if is_there || !path.exists() => continue,
            Place::Below(mounted, root) => {
                let from = format!("/proc/self/fd/{}", root.as_raw_fd());
                again(peer, mounted, Path::new(&from), path)?
            }
        };
        done.push((path, is_whole));
    }
    // From the root, so that it leads to what is mounted now.
    std::env::set_current_dir(&here)
}

/// A place to mount something on.
enum Place {
    /// A path to serve, and what its file system refuses.
    Asked(io::Result<MountFlags>),
    /// A mount below such a path, and its root directory.
    Below(Mounted, OwnedFd),
}

/// Mounts on `at` what is mounted already, and reached by `from`: behind a connection, if it holds files of users;
/// otherwise as it is. Returns whether what is mounted below came along.
fn again(peer: &Peer, mounted: &Mounted, from: &Path, at: &Path) -> io::Result<bool> {
    let Mounted { path, kind, refusals } = mounted;
    let has_files = WITH_FILES.contains(&kind.as_str()) && at.is_dir();
    if has_files && over(peer, path, at, *refusals).is_ok() {
        return Ok(false);
    }
    // As it is, if this user cannot serve it, either: alone, or with what is mounted below. Only the latter
    // works in a namespace of users, and without a word to a server that may not answer.
    let is_whole = has_files || asks_a_server(kind) || mount_bind(from, at).is_err();
    if is_whole {
        mount_bind_recursive(from, at).map_err(|error| naming(path, &error.into()))?;
    }
    Ok(is_whole)
}

/// File systems that hold files of the machine's users, and keep them in the kernel's page cache.
const WITH_FILES: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "nfs", "nfs4", "cifs",
    "smb3", "exfat", "vfat",
];

/// Whether names of a file system are looked up at a server or another process.
fn asks_a_server(kind: &str) -> bool {
    ["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs"].iter().any(|of| kind.starts_with(of))
}

/// Directories that stay as they are: they name no files of users, or belong to all of them.
const AS_THEY_ARE: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp"];

/// Gives this process a root directory in which all files that [`cover`] could serve lie behind connections:
/// those of file systems with users' files, less `/proc`, `/sys`, `/dev`, `/run` and the directories for
/// temporary files. `stage` is an empty directory.
///
/// # Errors
/// As [`cover`].
pub fn cover_all(peer: &Peer, stage: &Path) -> io::Result<()> {
    let here = std::env::current_dir()?;
    let mounts = mounts();
    enter()?;
    let root = Path::new("/");
    // Those that were mounted first are below others. The table tells the flags without a word to a server.
    let flags = mounts.iter().rfind(|mount| mount.path == root);
    let flags = flags.map_or(MountFlags::empty(), |mount| mount.refusals);
    over(peer, root, stage, flags).map_err(|error| naming(root, &error))?;
    let mut as_they_are = AS_THEY_ARE.map(PathBuf::from).to_vec();
    let inside = |path: &Path| stage.join(path.strip_prefix("/").unwrap_or(path));
    for path in AS_THEY_ARE.map(Path::new) {
        if path.is_dir() && !path.is_symlink() {
            // A recursive one takes along what is mounted below.
            mount_bind_recursive(path, inside(path))
                .map_err(|error| naming(path, &error.into()))?;
            if stage.starts_with(path) {
                // That included the new root itself.
                unmount(inside(stage), UnmountFlags::DETACH)?;
            }
        }
    }
    for mounted in &mounts {
        let path = &mounted.path;
        let is_done = as_they_are.iter().any(|dir| path.starts_with(dir));
        if path == root || is_done || path.starts_with(stage) {
            continue;
        }
        let at = inside(path);
        // A mount may hide the directory that this one is on.
        if at.exists() && again(peer, mounted, path, &at)? {
            as_they_are.push(path.clone());
        }
    }
    // The old root is below the new one for a moment, and then gone.
    std::env::set_current_dir(stage)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")?;
    std::env::set_current_dir(&here)
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A mounted file system.
struct Mounted {
    path: PathBuf,
    kind: String,
    /// What it refuses.
    refusals: MountFlags,
}

/// What a mount refuses, by the names of its options and of those of its file system.
const REFUSALS: [(&[u8], MountFlags); 4] = [
    (b"nosuid", MountFlags::NOSUID),
    (b"nodev", MountFlags::NODEV),
    (b"noexec", MountFlags::NOEXEC),
    (b"ro", MountFlags::RDONLY),
];

/// The refusals among options that are separated by commas.
fn refusals(options: &[u8]) -> MountFlags {
    let refused = |option: &[u8]| REFUSALS.iter().find(|(name, _)| *name == option);
    options.split(|&byte| byte == b',').filter_map(refused).map(|(_, flag)| *flag).collect()
}

/// What the mount refuses that a path leads to.
fn refusals_at(path: &Path) -> io::Result<MountFlags> {
    let has = rustix::fs::statvfs(path)?.f_flag;
    let refused = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    ];
    Ok(refused.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag).collect())
}

/// The mounted file systems, those above before those below them.
fn mounts() -> Vec<Mounted> {
    mounts_of(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

fn mounts_of(table: &[u8]) -> Vec<Mounted> {
    let parse = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let path = PathBuf::from(crate::mountpoint::unescaped(fields.nth(4)?));
        let of_mount = refusals(fields.next()?);
        let mut fields = fields.skip_while(|field| *field != b"-");
        let kind = String::from_utf8_lossy(fields.nth(1)?).into_owned();
        let of_file_system = fields.nth(1).map_or(MountFlags::empty(), refusals);
        Some(Mounted { path, kind, refusals: of_mount | of_file_system })
    };
    table.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// Opens the device, to see whether this user may.
///
/// # Errors
/// The device is missing, or refused.
pub fn can_open_device() -> io::Result<()> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_among_the_mounts() {
        let mounts = mounts();
        assert!(mounts.iter().any(|mount| mount.path == Path::new("/") && !mount.kind.is_empty()));
        assert!(mounts.iter().any(|mount| mount.kind == "proc"));
    }

    #[test]
    fn what_a_mount_refuses_is_in_the_table() {
        let table = b"29 1 0:26 / / rw,relatime - ext4 /dev/vda rw\n\
            40 29 0:41 / /srv rw,nosuid,nodev,noexec shared:1 master:2 - ext4 /dev/vdb ro,errors=remount-ro\n";
        let refusals: Vec<_> = mounts_of(table).iter().map(|mount| mount.refusals).collect();
        let all = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        assert_eq!(refusals, [MountFlags::empty(), all]);
    }

    #[test]
    fn what_is_said_arrives() {
        let (outside, inside) = Peer::pair().unwrap();
        let device = std::fs::File::open("/dev/null").unwrap().into();
        let asking = std::thread::spawn(move || {
            let served = inside.serve(Path::new("/srv/a b"), &device);
            let refused = inside.serve(Path::new("/srv"), &device).unwrap_err().to_string();
            inside.refused("why not").unwrap();
            (served.is_ok(), refused)
        });
        let (path, _) = outside.next().unwrap().unwrap();
        assert_eq!(path, Path::new("/srv/a b"));
        outside.served(Ok(())).unwrap();
        outside.next().unwrap().unwrap();
        outside.served(Err("no".into())).unwrap();
        assert_eq!(outside.next().unwrap_err().to_string(), "why not");
        assert_eq!(asking.join().unwrap(), (true, "no".to_owned()));
        assert!(outside.next().unwrap().is_none(), "the other end is closed");
    }
}
