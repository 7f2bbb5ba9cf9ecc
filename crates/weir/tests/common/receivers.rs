//! Failures of the threads that receive the kernel's requests, made by ptrace(2).
#![allow(unsafe_code, reason = "ptrace(2)")]

use super::within;
use std::fs;
use std::process::Child;
use std::time::Duration;

/// Makes what these threads of a process wait for fail with EIO. Returns whether this machine lets a test do that; if
/// not, the test is skipped.
#[track_caller]
pub(crate) fn fail_receivers(process: &Child) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        weir_skip::skip("registers of other processors have other names");
        return false;
    }
    let failed = within(Duration::from_secs(120), || {
        let threads = receivers(process);
        if threads.is_empty() {
            return Some(Ok(()));
        }
        threads.into_iter().find_map(|thread| match fail_read(thread) {
            // If it was not waiting, it is tried again.
            Ok(_) => None,
            // It has ended: the thread has got its name from the one that started it, or it has failed just now.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            Err(error) => Some(Err(error)),
        })
    });
    if let Err(error) = failed {
        weir_skip::skip(format_args!("ptrace(2): {error}"));
        return false;
    }
    true
}

/// The receiving threads of a process.
fn receivers(process: &Child) -> Vec<libc::pid_t> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let number = |name: String| name.trim_end().strip_prefix("weir-fuse-")?.parse::<u32>().ok();
    tasks
        .flatten()
        .filter(|task| name(task).ok().and_then(number).is_some())
        .map(|task| task.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// Makes the readv(2) in which a thread waits fail with EIO. Returns whether it waited in one.
#[cfg(target_arch = "x86_64")]
fn fail_read(thread: libc::pid_t) -> std::io::Result<bool> {
    use std::io::Error;
    /// What a call returns inside the kernel if it was interrupted and is to be made again.
    const RESTART: i64 = -512;
    let null = std::ptr::null_mut::<libc::c_void>();
    let checked = |result| if result == -1 { Err(Error::last_os_error()) } else { Ok(()) };
    // SAFETY: `thread` is not one of this process; the kernel writes and reads one structure of registers.
    let fail = || unsafe {
        checked(libc::ptrace(libc::PTRACE_INTERRUPT, thread, null, null))?;
        let mut status = 0;
        checked(libc::waitpid(thread, &raw mut status, libc::__WALL).into())?;
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        checked(libc::ptrace(libc::PTRACE_GETREGS, thread, null, &raw mut registers))?;
        let waits = registers.orig_rax.cast_signed() == libc::SYS_readv
            && registers.rax.cast_signed() == RESTART;
        if waits {
            registers.rax = i64::from(-libc::EIO).cast_unsigned();
            checked(libc::ptrace(libc::PTRACE_SETREGS, thread, null, &raw const registers))?;
        }
        checked(libc::ptrace(libc::PTRACE_DETACH, thread, null, null))?;
        Ok(waits)
    };
    // SAFETY: see above.
    checked(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, null, null) })?;
    fail().inspect_err(|_| {
        // A thread that ends is there until the process that traces it has waited for it.
        // SAFETY: the kernel writes no status.
        unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn fail_read(_: libc::pid_t) -> std::io::Result<bool> {
    Err(std::io::ErrorKind::Unsupported.into())
}
