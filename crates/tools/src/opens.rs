//! The files that a program opens, seen from outside: a seccomp filter that reports each open to another
//! process, which lets the system call continue (seccomp(2), seccomp_unotify(2)).
//!
//! 1. A filter belongs to the threads that install it and to all that they start, also over `execve`. It needs
//!    no privileges; without CAP_SYS_ADMIN, set-user-id programs then run without their rights.
//! 2. A reported call waits until the listener answers. If the listener is closed, the call fails (ENOSYS).
//! 3. The arguments are only read. The path may change between the look and the kernel's own lookup, so what
//!    is read here is a hint, and must not decide on rights.
//!
//! Sound because each system call gets pointers to live structures that have the kernel's layout, and at least
//! the sizes that the kernel names; and descriptors come from the kernel, and have no other owner.
#![allow(unsafe_code, reason = "system calls that rustix does not wrap")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// First kernel that says when a filter has no more users.
const OLDEST_KERNEL: (u32, u32) = (5, 9);
/// Longest path, with its zero byte.
const PATH_BYTES: usize = 4096;
/// Bytes of memory that are read at once: a path may end before memory that is not mapped.
const READ_AT_ONCE: usize = 256;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
const ARCHITECTURE: Option<u32> = None;

#[cfg(target_arch = "x86_64")]
const OPEN: Option<(i64, i64)> = Some((libc::SYS_open, libc::SYS_creat));
#[cfg(not(target_arch = "x86_64"))]
const OPEN: Option<(i64, i64)> = None;

/// Installs the filter in this process, which has one thread, and returns the listener.
///
/// # Errors
/// The architecture or the kernel has no such filters, a container refuses them, or this process has one
/// already.
pub fn install() -> io::Result<OwnedFd> {
    let unsupported = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
    let Some(architecture) = ARCHITECTURE else {
        return Err(unsupported("seccomp filters are supported on x86_64 and aarch64"));
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if version(&release).is_none_or(|version| version < OLDEST_KERNEL) {
        return Err(unsupported("seccomp listeners need Linux 5.9"));
    }
    let filter = filter(architecture);
    match listener(&filter) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: it takes numbers only.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            listener(&filter)
        }
        outcome => outcome,
    }
}

/// The numbers at the start of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The listener of a filter that this installs.
fn listener(filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // A signal does not interrupt a call that the listener has received, on Linux 5.19 and later.
    match install_with(filter, libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install_with(filter, 0),
        outcome => outcome,
    }
}

fn install_with(filter: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program and its instructions outlive the call, which only reads them.
    let number = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
}

/// The filter: reports calls that open files, and allows all others. Opens of directories, and those that
/// give no access to data, are not reported.
fn filter(architecture: u32) -> Vec<libc::sock_filter> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Offsets in `seccomp_data`; the low half of an argument comes first.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let low_half = |argument: u32| 16 + 8 * argument;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let boring = (libc::O_DIRECTORY | libc::O_PATH) as u32;
    let mut steps = vec![
        step(LOAD, 0, 0, ARCHITECTURE),
        step(EQUAL, 1, 0, architecture),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(LOAD, 0, 0, NUMBER),
    ];
    let with_flags = |number: i64, argument: u32| {
        [
            step(EQUAL, 0, 4, number as u32),
            step(LOAD, 0, 0, low_half(argument)),
            step(ANY_BIT, 0, 1, boring),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
            step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        ]
    };
    steps.extend(with_flags(libc::SYS_openat, 2));
    let mut always = vec![libc::SYS_openat2];
    if let Some((open, creat)) = OPEN {
        steps.extend(with_flags(open, 1));
        always.push(creat);
    }
    for number in always {
        steps.push(step(EQUAL, 0, 1, number as u32));
        steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    }
    steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    steps
}

/// The end that calls are reported to.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// Bytes that the kernel writes for a call, and reads for an answer.
    sizes: (usize, usize),
}

/// What a listener saw.
#[derive(Debug)]
pub enum Event {
    /// A call that waits for an answer.
    Call(Call),
    /// No call.
    Nothing,
    /// No process has the filter any more.
    End,
}

impl Listener {
    /// The listener of [`install`].
    ///
    /// # Errors
    /// The kernel has no such filters.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let mut sizes =
            libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
        let operation = libc::SECCOMP_GET_NOTIF_SIZES;
        // SAFETY: the kernel writes one structure of this type.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, &raw mut sizes) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let call = usize::from(sizes.seccomp_notif).max(size_of::<libc::seccomp_notif>());
        let answer =
            usize::from(sizes.seccomp_notif_resp).max(size_of::<libc::seccomp_notif_resp>());
        Ok(Self { fd, sizes: (call, answer) })
    }

    /// Waits for the next call, at most this long.
    ///
    /// # Errors
    /// The listener is broken.
    pub fn next(&self, most: Duration) -> io::Result<Event> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel writes to one structure of this type.
        let ready = unsafe { libc::poll(&raw mut poll, 1, most.as_millis() as libc::c_int) };
        match ready {
            0 => return Ok(Event::Nothing),
            1.. if poll.revents & libc::POLLIN != 0 => {}
            1.. => return Ok(Event::End),
            _ => return nothing_if_passing(io::Error::last_os_error()),
        }
        // Zeros, as the kernel requires; of 8 bytes each, for the alignment.
        let mut space = vec![0_u64; self.sizes.0.div_ceil(8)];
        // SAFETY: the kernel writes at most the size that it has named.
        let done = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, space.as_mut_ptr())
        };
        if done != 0 {
            return nothing_if_passing(io::Error::last_os_error());
        }
        // SAFETY: it is as large as the structure at least, aligned, and any bytes are valid.
        let call = unsafe { space.as_ptr().cast::<libc::seccomp_notif>().read() };
        Ok(Event::Call(Call {
            id: call.id,
            pid: call.pid,
            number: call.data.nr.into(),
            arguments: call.data.args,
        }))
    }

    /// Whether a call still waits. If so, its process number has not been used for another process.
    pub fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one number.
        let done = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
        };
        done == 0
    }

    /// Lets the kernel carry out a call. A call whose thread has ended is no error.
    pub fn go_on(&self, id: u64) {
        let mut space = vec![0_u64; self.sizes.1.div_ceil(8)];
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
        // SAFETY: it is as large as the structure at least, and aligned.
        unsafe { space.as_mut_ptr().cast::<libc::seccomp_notif_resp>().write(answer) };
        loop {
            // SAFETY: the kernel reads at most the size that it has named.
            let done = unsafe {
                libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, space.as_mut_ptr())
            };
            if done == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return;
            }
        }
    }
}

/// A thread may end before its call is received.
fn nothing_if_passing(error: io::Error) -> io::Result<Event> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => Ok(Event::Nothing),
        _ => Err(error),
    }
}

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number for answers.
    pub id: u64,
    /// The thread; 0 if it is in a namespace that this process does not see.
    pub pid: u32,
    number: i64,
    arguments: [u64; 6],
}

/// The arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Open {
    /// The directory that the path starts at; `None` for the current one.
    pub dir: Option<i32>,
    /// The path, not empty.
    pub path: Vec<u8>,
    /// Whether the file can be written through it.
    pub writes: bool,
    /// Whether the file is created if it does not exist.
    pub creates: bool,
}

impl Call {
    /// Reads the arguments, with those in the memory of the calling thread.
    ///
    /// # Errors
    /// The kernel does not let this process read that memory, or the thread has ended.
    pub fn open(&self) -> io::Result<Open> {
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        let [first, second, third, ..] = self.arguments;
        let (dir, path, flags) = match self.number {
            libc::SYS_openat => (first as i32, second, third),
            libc::SYS_openat2 => {
                let mut flags = [0; 8];
                memory.read_exact_at(&mut flags, third)?;
                (first as i32, second, u64::from_ne_bytes(flags))
            }
            number if OPEN.is_some_and(|(_, creat)| number == creat) => {
                (libc::AT_FDCWD, first, (libc::O_CREAT | libc::O_WRONLY) as u64)
            }
            _ => (libc::AT_FDCWD, first, second),
        };
        let path = text_at(&memory, path)?;
        if path.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let has = |flag: i32| flags & flag as u64 != 0;
        Ok(Open {
            dir: (dir != libc::AT_FDCWD).then_some(dir),
            path,
            writes: has(libc::O_WRONLY) || has(libc::O_RDWR),
            creates: has(libc::O_CREAT),
        })
    }
}

/// The text at an address, up to its zero byte.
fn text_at(memory: &File, address: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < PATH_BYTES {
        let mut bytes = [0; READ_AT_ONCE];
        let at = address.checked_add(text.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        // It ends early before memory that is not mapped.
        let read = memory.read_at(&mut bytes, at)?;
        if read == 0 {
            break;
        }
        match bytes[..read].iter().position(|&byte| byte == 0) {
            Some(end) => {
                text.extend_from_slice(&bytes[..end]);
                return Ok(text);
            }
            None => text.extend_from_slice(&bytes[..read]),
        }
    }
    Err(io::ErrorKind::InvalidInput.into())
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels_are_parsed() {
        assert_eq!(version("6.18.44-fc\n"), Some((6, 18)));
        assert_eq!(version("5.9-rc1"), Some((5, 9)));
        assert_eq!(version("x"), None);
    }

    #[test]
    fn arguments_are_read_from_memory() {
        let path = c"/srv/a file";
        let address = path.as_ptr() as u64;
        let flags = (libc::O_RDWR | libc::O_CREAT) as u64;
        let call = |number, arguments| Call { id: 1, pid: std::process::id(), number, arguments };
        let expected =
            Open { dir: Some(7), path: path.to_bytes().to_vec(), writes: true, creates: true };
        let relative = call(libc::SYS_openat, [7, address, flags, 0, 0, 0]).open().unwrap();
        assert_eq!(relative, expected);
        let how = [flags, 0, 0];
        let how = how.as_ptr() as u64;
        let second = call(libc::SYS_openat2, [7, address, how, 24, 0, 0]).open().unwrap();
        assert_eq!(second, expected);
        let here = libc::AT_FDCWD as u64;
        let read = call(libc::SYS_openat, [here, address, 0, 0, 0, 0]).open().unwrap();
        assert_eq!((read.dir, read.writes, read.creates), (None, false, false));
        // Address 8 is not mapped.
        assert!(call(libc::SYS_openat, [here, 8, 0, 0, 0, 0]).open().is_err());
    }

    #[test]
    fn every_path_through_the_filter_returns() {
        let steps = filter(0xc000_003e);
        for (at, step) in steps.iter().enumerate() {
            let is_return = step.code == (libc::BPF_RET | libc::BPF_K) as u16;
            let furthest = at + 1 + usize::from(step.jt.max(step.jf));
            assert!(is_return || furthest < steps.len(), "step {at}");
        }
    }
}
