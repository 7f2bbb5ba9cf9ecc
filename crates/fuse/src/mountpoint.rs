//! Attaches a connection to a directory, and detaches it.
//!
//! 1. Root, also of a user namespace, mounts by mount(2); other users by the set-user-id program
//!    `fusermount3` of their distribution.
//! 2. Detaching affects this mount only: another one on the same directory, below or above it, stays.

use crate::namespace;
use crate::session::device;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that mounts for users without the right to.
const HELPER: &str = "fusermount3";
/// The name of the file system in the table of mounts.
const TYPE: &str = "fuse.weir";
/// The numbers of the device `/dev/fuse`.
const DEVICE: (u32, u32) = (10, 229);

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The source that the table of mounts shows.
    pub source: String,
    /// Refuse all changes.
    pub read_only: bool,
    /// Let users other than the one who mounts use it; the kernel checks permissions then.
    pub allow_other: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Allow set-user-id programs and devices; only root can.
    pub trusted: bool,
}

/// Why a directory cannot be mounted on.
#[derive(Debug)]
pub enum MountError {
    /// There is no `/dev/fuse`.
    NoDevice,
    /// This user may not open `/dev/fuse`, or the kernel or a container refuses the mount.
    Refused(io::Error),
    /// The helper for users is not installed.
    NoHelper,
    /// The helper refused, and said why.
    Helper(String),
    /// The directory.
    Directory(io::Error),
    /// The descriptor that was passed.
    Passed(io::Error),
}

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDevice => f.write_str("this system has no /dev/fuse"),
            Self::Refused(error) => write!(f, "the kernel refuses it: {error}"),
            Self::NoHelper => write!(f, "{HELPER} is not installed"),
            Self::Helper(said) => write!(f, "{HELPER} refuses it: {said}"),
            Self::Directory(error) => write!(f, "{error}"),
            Self::Passed(error) => write!(f, "the descriptor that was passed: {error}"),
        }
    }
}

impl std::error::Error for MountError {}

/// The connection that another process has mounted and left open for this one, if `dir` is `/dev/fd/N`,
/// with the number of its descriptor. That process mounts and unmounts; this one needs no right to.
///
/// Source: mount.fuse3(8), "special mount point".
///
/// # Errors
/// [`MountError::Passed`]: there is no such descriptor, or it is not one of `/dev/fuse`.
pub fn passed_connection(dir: &Path) -> Option<Result<OwnedFd, MountError>> {
    let number = dir.strip_prefix("/dev/fd").ok()?.to_str()?.parse().ok()?;
    Some(take_passed(number).map_err(MountError::Passed))
}

fn take_passed(number: RawFd) -> io::Result<OwnedFd> {
    // This process itself has not opened the device yet.
    let device = std::fs::metadata(format!("/proc/self/fd/{number}"))?.rdev();
    if device != rustix::fs::makedev(DEVICE.0, DEVICE.1) {
        let text = format!("number {number} is not one of /dev/fuse");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    namespace::inherited(number)
}

/// A directory on which this program has mounted a connection.
#[derive(Debug)]
pub struct Mountpoint {
    path: PathBuf,
    /// The mount's number in the table of mounts.
    id: u64,
    by_helper: bool,
}

impl Mountpoint {
    /// Mounts a new connection on `dir`. Until a [`Session`](crate::Session) serves it, programs that
    /// use the directory wait.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn attach(dir: &Path, options: &MountOptions) -> Result<(OwnedFd, Self), MountError> {
        let path = dir.canonicalize().map_err(MountError::Directory)?;
        if !path.is_dir() {
            return Err(MountError::Directory(io::ErrorKind::NotADirectory.into()));
        }
        if !device::exists() {
            return Err(MountError::NoDevice);
        }
        let (connection, by_helper) = match mount_directly(&path, options, MountFlags::empty()) {
            Ok(connection) => (connection, false),
            Err(error) if rustix::process::geteuid().is_root() => {
                return Err(MountError::Refused(error));
            }
            Err(_) => (mount_by_helper(&path, options)?, true),
        };
        let id = mounts_at(&path).last().copied().unwrap_or(0);
        Ok((connection, Self { path, id, by_helper }))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mount's number in the table of mounts (`/proc/self/mountinfo`).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A mount that another process has made.
    pub fn of(path: PathBuf, id: u64) -> Self {
        Self { path, id, by_helper: !rustix::process::geteuid().is_root() }
    }

    /// Whether it is still mounted.
    pub fn is_attached(&self) -> bool {
        mounts_at(&self.path).contains(&self.id)
    }

    /// Makes the kernel read ahead by the largest READ, 1 MiB, where it fills its own cache: for mapped
    /// files, and with [`Keeper::Kernel`](crate::Keeper::Kernel). It takes 128 KiB by itself. Call this
    /// when the session has begun. Source: Documentation/ABI/testing/sysfs-class-bdi of Linux.
    ///
    /// # Errors
    /// Only root may change this.
    pub fn widen_read_ahead(&self) -> io::Result<()> {
        let device = self.device()?;
        let kib = (crate::session::MOST_BYTES >> 10).to_string();
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kib)
    }

    /// The number of its device, as MAJOR:MINOR.
    fn device(&self) -> io::Result<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let own = table.lines().map(|line| line.split(' ')).find_map(|mut fields| {
            let is_own = fields.next()?.parse() == Ok(self.id);
            fields.nth(1).filter(|_| is_own)
        });
        Ok(own.ok_or(io::ErrorKind::NotFound)?.to_owned())
    }

    /// Ends the connection, if the kernel lets this user: all requests fail, and so does what programs do with files
    /// that they have open. Source: Documentation/filesystems/fuse of Linux, "Control filesystem".
    pub fn abort(&self) {
        let device = self.device();
        let minor = device.as_deref().ok().and_then(|device| device.strip_prefix("0:"));
        let aborted = minor.is_some_and(|minor| {
            std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").is_ok()
        });
        // The control file system is not mounted everywhere.
        if !aborted && mounts_at(&self.path).last() == Some(&self.id) {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            let _ = unmount(&self.path, flags);
        }
    }

    /// Takes the mount away: no program finds it any more, and those that have files open keep them
    /// until the connection ends.
    ///
    /// # Errors
    /// Another file system is mounted over it; or the kernel refuses.
    pub fn detach(&self) -> io::Result<()> {
        let here = mounts_at(&self.path);
        if !here.contains(&self.id) {
            return Ok(());
        }
        if here.last() != Some(&self.id) {
            let text = format!("another file system is mounted over {}", self.path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        match unmount(&self.path, flags) {
            Err(rustix::io::Errno::PERM) if self.by_helper => {
                let mut helper = Command::new(HELPER);
                let said = helper.arg("-u").arg("-z").arg("--").arg(&self.path).output()?;
                match said.status.success() {
                    true => Ok(()),
                    false => Err(io::Error::other(text_of(&said.stderr))),
                }
            }
            done => Ok(done?),
        }
    }
}

/// Mounts by mount(2), with these flags beside those of the options.
pub(crate) fn mount_directly(
    path: &Path,
    options: &MountOptions,
    flags: MountFlags,
) -> io::Result<OwnedFd> {
    let connection = device::open()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={}",
        connection.as_raw_fd(),
        crate::session::MOST_BYTES,
    );
    if options.allow_other {
        data.push_str(",allow_other,default_permissions");
    }
    let mut flags = flags;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    if options.no_exec {
        flags |= MountFlags::NOEXEC;
    }
    if !options.trusted {
        flags |= MountFlags::NOSUID | MountFlags::NODEV;
    }
    let data = CString::new(data)?;
    mount(options.source.as_str(), path, TYPE, flags, data.as_c_str())?;
    Ok(connection)
}

/// Has `fusermount3` mount; it sends the connection over a socket.
fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |error: rustix::io::Errno| MountError::Refused(error.into());
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(refused)?;
    // The helper inherits its end.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(refused)?;
    // The helper splits its options at commas.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut wanted = format!(
        "nosuid,nodev,subtype=weir,max_read={},fsname={source}",
        crate::session::MOST_BYTES,
    );
    if options.allow_other {
        wanted.push_str(",allow_other,default_permissions");
    }
    if options.no_exec {
        wanted.push_str(",noexec");
    }
    wanted.push_str(if options.read_only { ",ro" } else { ",rw" });
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(wanted).arg("--").arg(path);
    helper.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let said = helper.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Helper(error.to_string()),
    })?;
    drop(theirs);
    if !said.status.success() {
        return Err(MountError::Helper(text_of(&said.stderr)));
    }
    match received(&ours, &mut [0]) {
        Ok((_, Some(connection))) => Ok(connection),
        Ok((_, None)) => Err(MountError::Helper("it sent no connection".into())),
        Err(error) => Err(MountError::Helper(error.to_string())),
    }
}

/// Receives a message of a socket: its length, and the descriptor that comes with it.
pub(crate) fn received(
    socket: &impl AsFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)
    })?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((message.bytes, descriptor))
}

fn text_of(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    text.strip_prefix("fusermount3: ").unwrap_or(text).to_owned()
}

/// The numbers of the mounts on a directory, the topmost last.
fn mounts_at(path: &Path) -> Vec<u64> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounts_in(&table, path)
}

fn mounts_in(table: &[u8], path: &Path) -> Vec<u64> {
    let number = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let at = fields.nth(3)?;
        (unescaped(at) == path.as_os_str()).then_some(id)
    };
    table.split(|&byte| byte == b'\n').filter_map(number).collect()
}

/// A field of the table of mounts: space, tab, newline and backslash are in octal.
pub(crate) fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| first == b'\\');
        let value =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match value {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_directory() {
        let table = b"29 1 0:26 / / rw - ext4 /dev/vda rw\n\
            40 29 0:41 / /mnt/a\\040b rw shared:1 - fuse.weir x rw\n\
            41 40 0:42 / /mnt/a\\040b rw - tmpfs tmpfs rw\n\
            broken\n";
        assert_eq!(mounts_in(table, Path::new("/mnt/a b")), [40, 41]);
        assert_eq!(mounts_in(table, Path::new("/mnt/a")), [0u64; 0]);
        assert_eq!(unescaped(b"a\\134b\\9"), OsString::from_vec(b"a\\b\\9".to_vec()));
    }
}
